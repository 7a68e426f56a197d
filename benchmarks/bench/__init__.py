"""Compares paths to a broker (direct, through proxies) in one run: `make bench`, `python -m benchmarks.bench --help`.

    __main__ ──▶ runner ──▶ workloads ──▶ Kafka's tools, raw (sockets),   the load
                    │           │         handshakes
                    │           └───────▶ cores                           the proxy's CPU and memory
                    ├─────▶ paths, peers ──▶ broker, tls                  the processes under test
                    └─────▶ report ──▶ figures, targets, plot             the evaluation

__main__               the command line
runner                 one run: the workloads on each path in turn, in several rounds
workloads              what runs on each path, and what is measured
raw                    raw Kafka connections, and requests at exact times
handshakes             many TLS handshakes
cores                  CPU affinity, CPU time and resident memory of processes
paths                  the paths to the broker
peers                  the other proxies: HAProxy and Kroxylicious
kroxylicious_launcher  runs Kroxylicious
broker                 the broker of a run
tls                    certificates and settings of TLS for all programs
otlp_sink              accepts traces and discards them
programs               programs of a path as processes
interpreters           the Python that runs Headrace
report                 the report of a run: JSON and Markdown
figures                medians, quartiles, and ratios of two paths
targets                the performance targets
plot                   the plot of a run
errors                 the errors of the benchmark

`workloads` only knows a proxy's address and process id; `paths` does not know what is measured; `figures`, `targets`
and `report` are pure. docs/benchmarks.md explains the results.
"""
