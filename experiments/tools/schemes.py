"""Draw the pictures with which the pages of algorithms begin: one scheme for each family, as SVG.

python -m experiments.tools.schemes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "methods" / "algorithms" / "schemes"
WIDTH, HEIGHT = 680, 230
TEXT, LINE, PAPER = "#26323f", "#66727f", "#ffffff"
ONE, OTHER, BOTH, OWN = "#cfe3f7", "#fbdcb8", "#e6eaee", "#d9efd3"
"""The colours of two groups, of what both share, and of what a client keeps."""

STYLE = (
    f"text{{font:13px sans-serif;fill:{TEXT};text-anchor:middle}}.small{{font-size:11px}}"
    f"line,path{{stroke:{LINE};stroke-width:1.5;fill:none;marker-end:url(#tip)}}rect,circle{{stroke:{LINE}}}"
)
TIP = f'<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"><path d="M0 0L8 4L0 8z" \
style="fill:{LINE};stroke:none"/></marker>'


def box(x: float, y: float, label: str, colour: str = BOTH, width: float = 120, height: float = 30) -> str:
    """A rectangle with its centre at (x, y), and its label in the middle."""
    corner = f'x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width:g}" height="{height:g}" rx="5"'
    return f'<rect {corner} fill="{colour}"/>{note(x, y + 4.5, label)}'


def note(x: float, y: float, label: str, small: bool = False) -> str:
    """A line of text with its middle at x."""
    kind = ' class="small"' if small else ""
    return f'<text x="{x:g}" y="{y:g}"{kind}>{escape(label)}</text>'


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """An arrow from one point to another."""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def clients(xs: Sequence[float], y: float, colours: Sequence[str]) -> str:
    """A circle for each client."""
    pairs = zip(xs, colours, strict=True)
    return "".join(f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="{colour}"/>' for x, colour in pairs)


def layers(x: float, y: float, colours: Sequence[str]) -> str:
    """A network as a stack of layers, the one next to the samples at the bottom."""
    return "".join(box(x, y - 16 * number, "", colour, 62, 14) for number, colour in enumerate(colours))


def heat_map(x: float, y: float, colours: Sequence[Sequence[str]], size: float = 14) -> str:
    """A matrix of the clients, its upper left corner at (x, y)."""
    return "".join(
        f'<rect x="{x + size * column:g}" y="{y + size * row:g}" width="{size:g}" height="{size:g}" fill="{colour}"/>'
        for row, line in enumerate(colours)
        for column, colour in enumerate(line)
    )


GROUPED = [[ONE] * 2 + [PAPER] * 2] * 2 + [[PAPER] * 2 + [OTHER] * 2] * 2
"""A matrix of similarities with two groups."""


def one_model() -> str:
    """One model for everybody."""
    xs = [140, 240, 340, 440, 540]
    sent = "".join(arrow(340 + (x - 340) * 0.3, 62, x, 152) for x in xs)
    text = note(120, 108, "the model", small=True) + note(560, 108, "updates, back", small=True)
    return (
        box(340, 45, "server: one model", width=150)
        + sent
        + clients(xs, 165, [BOTH] * 5)
        + text
        + note(340, 205, "every client trains the same model on its own data")
    )


def own_models() -> str:
    """A model on each client."""
    xs = [140, 340, 540]
    drawn = box(340, 40, "common start, or global model", width=220)
    drawn += "".join(arrow(340 + (x - 340) * 0.4, 56, x, 100) for x in xs)
    drawn += "".join(box(x, 118, f"own model v{number}", OWN) for number, x in enumerate(xs, 1))
    drawn += "".join(arrow(x, 162, x, 136) for x in xs) + clients(xs, 173, [BOTH] * 3)
    return drawn + note(340, 212, "own models stay on the device, and are what clients use")


def k_models() -> str:
    """Several models, each for some clients."""
    xs = [110, 190, 270, 410, 490, 570]
    drawn = box(190, 45, "model 1", ONE) + box(490, 45, "model 2", OTHER)
    drawn += "".join(arrow(x, 150, 190 + (x - 190) * 0.4, 62) for x in xs[:3])
    drawn += "".join(arrow(x, 150, 490 + (x - 490) * 0.4, 62) for x in xs[3:])
    drawn += clients(xs, 162, [ONE] * 3 + [OTHER] * 3)
    return drawn + note(340, 205, "each client belongs to one model, and each model is the mean of its clients'")


def _networks(colours: Sequence[str], kept: str) -> str:
    """The networks of three clients, whose green layers the server does not have."""
    shared = [BOTH if colour == BOTH else PAPER for colour in colours]
    drawn = layers(120, 120, shared) + note(120, 152, "server", small=True)
    for number, x in enumerate((290, 400, 510), 1):
        drawn += layers(x, 120, colours) + note(x, 152, f"client {number}", small=True)
    drawn += arrow(160, 90, 252, 90) + arrow(252, 102, 160, 102) + note(206, 80, "grey: averaged", small=True)
    drawn += note(340, 35, "networks, with the layer next to the samples at the bottom")
    return drawn + note(340, 205, f"{kept} (green) never leave the client; all other layers are averaged")


def deep_personal() -> str:
    """The last layers are personal, all others shared."""
    return _networks([BOTH, BOTH, BOTH, OWN], "the last layers")


def shallow_personal() -> str:
    """The first layers are personal, all others shared."""
    return _networks([OWN, OWN, BOTH, BOTH], "the first layers")


def normalisation_personal() -> str:
    """The normalisation layers are personal, all others shared."""
    return _networks([BOTH, OWN, BOTH, OWN, BOTH], "the normalisation layers")


def tree() -> str:
    """A tree of splits."""
    drawn = box(340, 35, "all clients") + box(200, 105, "side 1", ONE) + box(480, 105, "side 2", OTHER)
    drawn += arrow(310, 51, 225, 89) + arrow(370, 51, 455, 89)
    drawn += box(120, 175, "side 1.1", ONE) + box(280, 175, "side 1.2", ONE)
    drawn += arrow(180, 121, 140, 159) + arrow(220, 121, 260, 159)
    drawn += note(480, 140, "no split: one model fits all members", small=True)
    return drawn + note(340, 218, "a cluster whose members pull in different directions is split into two sides")


def layercfl() -> str:
    """LayerCFL: the slice of some layers."""
    drawn = (
        note(100, 32, "updates") + layers(65, 130, [BOTH, BOTH, ONE, BOTH]) + layers(140, 130, [BOTH, BOTH, ONE, BOTH])
    )
    drawn += note(100, 160, "compare some layers", small=True) + arrow(180, 98, 258, 98)
    drawn += note(310, 32, "cosines of the clients") + heat_map(282, 70, GROUPED) + arrow(350, 98, 428, 98)
    drawn += box(500, 60, "side 1", ONE) + box(500, 136, "side 2", OTHER) + note(500, 32, "a split, if Theorem 1 holds")
    drawn += clients([590, 612], 60, [ONE] * 2) + clients([590, 612], 136, [OTHER] * 2)
    return drawn + note(340, 205, "conv layers for feature skew, linear layers for label skew, all layers otherwise")


def stability() -> str:
    """HiCFL: stability of a layer over rounds, then a split around a reference."""
    drawn = note(150, 30, "stability of a layer") + arrow(50, 150, 270, 150) + arrow(50, 150, 50, 45)
    drawn += '<path d="M60 60C90 70 95 125 150 130S230 142 255 143" style="marker-end:none"/>'
    drawn += '<path d="M50 132H262" style="marker-end:none;stroke-dasharray:4 4"/>' + note(275, 136, "ε", small=True)
    drawn += note(160, 170, "rounds", small=True) + arrow(300, 98, 370, 98) + note(335, 86, "stable", small=True)
    drawn += note(510, 30, "updates of that layer") + arrow(510, 105, 600, 72)
    drawn += arrow(510, 105, 595, 118) + arrow(510, 105, 440, 62) + arrow(510, 105, 470, 158)
    drawn += note(622, 68, "reference", small=True) + note(580, 145, "A: cosine > 0", small=True)
    drawn += note(415, 165, "B: cosine ≤ 0", small=True)
    return drawn + note(
        340, 210, "as soon as a layer is stable, clients that point away from the most stable one leave"
    )


def one_shot() -> str:
    """One clustering, and FedAvg inside the clusters."""
    drawn = "".join(clients([70], y, [ONE if y < 100 else OTHER]) for y in (55, 85, 115, 145))
    drawn += note(70, 30, "clients") + arrow(95, 100, 165, 100) + note(130, 90, "once", small=True)
    drawn += note(215, 30, "distances") + heat_map(187, 72, GROUPED) + arrow(255, 100, 325, 100)
    drawn += note(405, 30, "dendrogram")
    for path in ("M350 150V120H390V150", "M420 150V112H460V150", "M370 120V60H440V112"):
        drawn += f'<path d="{path}" style="marker-end:none"/>'
    drawn += '<path d="M340 88H470" style="marker-end:none;stroke-dasharray:4 4"/>' + note(487, 92, "cut", small=True)
    drawn += arrow(505, 100, 555, 100) + box(615, 70, "cluster 1", ONE, 90) + box(615, 130, "cluster 2", OTHER, 90)
    return drawn + note(340, 205, "clients are clustered once; afterwards each cluster trains its own model")


def adacfl() -> str:
    """AdaCFL: pre-clusters by entropy, one clustering, newcomers."""
    drawn = (
        note(95, 30, "pre-clusters")
        + box(95, 70, "entropy near 0.8", width=130)
        + box(95, 130, "entropy near 2.0", width=130)
    )
    drawn += arrow(165, 100, 235, 100) + note(200, 90, "round t_c", small=True)
    drawn += note(290, 30, "smallest linear layer") + heat_map(262, 72, GROUPED) + arrow(330, 100, 400, 100)
    drawn += note(455, 30, "clusters") + box(455, 70, "cluster 1", ONE, 90) + box(455, 130, "cluster 2", OTHER, 90)
    drawn += clients([590], 70, [ONE]) + note(590, 30, "newcomer") + arrow(578, 70, 504, 70)
    drawn += note(590, 100, "joins the nearest,", small=True) + note(590, 116, "or founds a cluster", small=True)
    return drawn + note(340, 205, "one early clustering by one small layer, among clients of similar class entropy")


def two_stages() -> str:
    """FedTSDP: predictions, then weights, and fewer shared layers."""
    drawn = (
        box(85, 98, "predictions") + note(85, 30, "do they cluster?") + note(85, 135, "Hopkins H > h_th", small=True)
    )
    drawn += arrow(148, 98, 208, 98) + note(262, 30, "stage 1: predictions") + heat_map(234, 70, GROUPED)
    drawn += note(262, 150, "DBSCAN, ε1", small=True) + arrow(304, 98, 364, 98)
    drawn += note(430, 30, "stage 2: weights") + heat_map(386, 84, [[ONE, PAPER], [PAPER, ONE]])
    drawn += heat_map(446, 84, [[OTHER] * 2] * 2) + note(430, 150, "DBSCAN, ε2, in each group", small=True)
    drawn += arrow(492, 98, 552, 98) + note(605, 30, "clusters") + layers(605, 132, [BOTH, BOTH, BOTH, OWN])
    drawn += note(605, 160, "fewer shared layers", small=True)
    return drawn + note(340, 205, "each time clients are clustered, one more part of the network may become personal")


def two_halves() -> str:
    """Strata: half A proposes groups, half B judges their models."""
    drawn = note(70, 30, "data of each client") + box(70, 65, "half A", ONE, 90) + box(70, 135, "half B", OTHER, 90)
    drawn += arrow(118, 65, 158, 65) + note(190, 30, "similar updates") + heat_map(162, 40, GROUPED, 13)
    drawn += arrow(222, 65, 262, 65) + box(325, 50, "model of group 1", ONE) + box(325, 85, "model of group 2", ONE)
    drawn += arrow(118, 135, 440, 135) + arrow(388, 65, 450, 110)
    drawn += box(510, 120, "losses on half B", OTHER) + note(510, 152, "t-test: whose model is preferred?", small=True)
    drawn += arrow(574, 120, 606, 120) + box(640, 120, "split", OWN, 56)
    return drawn + note(340, 205, "if clients are alike, the members of both groups prefer one model equally much")


SCHEMES: dict[str, Callable[[], str]] = {
    draw.__name__: draw
    for draw in (
        one_model,
        own_models,
        k_models,
        deep_personal,
        shallow_personal,
        normalisation_personal,
        tree,
        layercfl,
        stability,
        one_shot,
        adacfl,
        two_stages,
        two_halves,
    )
}
"""What draws each picture, by the name of its file."""


def drawings() -> dict[Path, str]:
    """Each picture as SVG, by where it is."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    paper = f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:{PAPER};stroke:none"/>'
    frame = f"{head}<style>{STYLE}</style><defs>{TIP}</defs>{paper}"
    return {FOLDER / f"{name}.svg": f"{frame}{draw()}</svg>\n" for name, draw in SCHEMES.items()}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for path, text in drawings().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
