"""Compares paths to a broker (direct, through proxies) in one run: `make bench`, `python -m benchmarks.bench --help`.

    __main__ ──▶ runner ──▶ workloads ──▶ Kafka's tools, raw (sockets),   the load
                    │           │         handshakes
                    │           └───────▶ cores                           the proxy's CPU and memory
                    ├─────▶ paths, peers ──▶ broker, tls                  the processes under test
                    └─────▶ report ──▶ figures, targets, plot             the evaluation

`workloads` only knows a proxy's address and process id; `paths` does not know what is measured; `figures`, `targets`
and `report` are pure. docs/benchmarks.md explains the results.
"""
