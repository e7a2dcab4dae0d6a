"""The table of docs/deploy/flower.md about compressed updates: what travels, and what it changes."""

from __future__ import annotations

from experiments.tools.outcomes import MISSING, average, difference, results, table

FEDERATIONS = (
    ('data.name=mnist+partition={scheme="rotation",groups=4}', "MNIST, 4 rotations"),
    ('data.name=fashion_mnist+partition={scheme="dirichlet",alpha=0.3}', "Fashion-MNIST, Dirichlet 0.3"),
)

PLAIN = 'network={compression="none"}'

KINDS = (
    (PLAIN, "none"),
    ('network={compression="bfloat16"}', "`bfloat16`"),
    ('network={compression="int8"}', "`int8`"),
    ('network={compression="top_k",share=0.1}', "`top_k`, 0.1"),
    ('network={compression="top_k",share=0.01}', "`top_k`, 0.01"),
)

METHODS = (("fedavg", "FedAvg"), ("strata", "Strata"))


def compressed() -> str:
    """Traffic, clusters and accuracy of each kind of compression, and how much it changes against none."""
    rows = list[tuple[str, ...]]()
    for federation, title in FEDERATIONS:
        for method, name in METHODS:
            plain = results("compression", f"{method}+{federation}+{PLAIN}")
            for kind, shown in KINDS:
                runs = results("compression", f"{method}+{federation}+{kind}")
                case = f"{title}; {name}; {shown}"
                if not runs or not plain:
                    rows.append((case, MISSING, "", "", "", ""))
                    continue
                sent = sum(run["bytes_up"] for run in runs) / sum(run["bytes_up"] for run in plain)
                clusters = ", ".join(str(run["clusters"]) for run in runs)
                change = "-" if kind == PLAIN else difference(runs, plain)
                rows.append((case, str(len(runs)), f"{sent:.3f}", clusters, average(runs, "acc_client"), change))
    return table("federation; method; compression | seeds | bytes sent | clusters | accuracy | change", rows)
