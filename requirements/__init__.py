"""The versions that Headrace is built, tested and run with, and what is made of them. Not shipped.

    dev.txt  every distribution that work on Headrace needs, with the hashes of its files; `make` installs these
    run.txt  those that a proxy needs, with its extras, for an installation or an image
    audit    fails if advisories name one of the versions (`make audit`)
    judged_advisories.toml    advisories that do not concern Headrace, with the reasons
    sbom     the software bill of materials of a release (`make dist`)

``make hashes`` writes both files from ``constraints.txt``, which has the versions, and ``pyproject.toml``.
"""
