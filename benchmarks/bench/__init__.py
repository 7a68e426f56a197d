"""What ways to a broker cost, side by side in one run: `make bench`, or `python -m benchmarks.bench --help`.

    __main__ ──▶ runner ──▶ works ──▶ tools (Kafka's own), raw (sockets)     what is done
                    │         └─────▶ cores                                  what it cost the proxy
                    ├─────▶ ways, kroxylicious ──▶ broker                    through what
                    └─────▶ report ──▶ figures, targets, plot                what it means

`works` knows nothing of proxies but an address and a process id; `ways` knows nothing of what is measured; `figures`,
`targets` and `report` are pure. docs/benchmarks.md says how to read what comes out.
"""
