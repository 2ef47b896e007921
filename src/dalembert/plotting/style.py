"""One look for every figure: fonts, colours that the colour-blind tell apart, dashes that survive black and white."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from ..errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito (2008), ordered by contrast with white."""
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STROKES = [(COLOURS[k % 7], DASHES[(k + k // 7) % 7]) for k in range(49)]
"""Pairs of a colour and a dash, no two alike: many methods in one picture can be told apart."""
POINTS = [(colour, dash, MARKERS[(k + 2 * (k // 7)) % 7]) for k, (colour, dash) in enumerate(STROKES)]
"""Colours, dashes and markers: two lines of one colour have another dash and another marker."""
GREY, LIGHT = "#555555", "#dddddd"
FLOOR = 1e-17
DOTS_PER_INCH = 150
ROUND_OFF = 1e-16  # magnitudes below this are drawn on a linear axis, beside larger ones
LABEL_INCHES = 0.22  # what the label of a decade needs along its axis
MAX_DIRECT = 22  # letters of a name beside the end of a curve
MAX_FAN = 3  # names beside one point, at 0 or at round-off; more are counted
MAX_UPRIGHT = 8  # letters of a label in space that is not turned along its axis
TURNS_OF_NOISE = 100  # a curve that rises and falls more often is drawn thin: another one behind it is seen
TIME = "time $t$, s"
MAGNITUDES = "magnitudes"  # marks axes with curves of |values|
SHEET = Path(__file__).with_name("style.mplstyle")
STYLE: dict[str, Any] = {}
"""Your changes to the look of every figure, by Matplotlib's names: `plotting.STYLE["font.family"] = "serif"`.

"font.size" makes all text larger or smaller: labels, titles and legends follow, unless their sizes are given too."""
HOUSE_SIZE = 9.0  # "font.size" of the style sheet
SIZES = ("axes.titlesize", "axes.labelsize", "legend.fontsize", "figure.titlesize")


P = ParamSpec("P")
R = TypeVar("R")


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the house style; Matplotlib is imported when something is drawn, not before."""

    @wraps(draw)
    def draw_in_style(*arguments: P.args, **options: P.kwargs) -> R:
        import matplotlib.figure

        house: dict[Any, Any] = matplotlib.rc_params_from_file(SHEET, use_default_template=False)
        larger = float(STYLE.get("font.size", house["font.size"])) / house["font.size"]
        sizes: dict[Any, Any] = {name: larger * house[name] for name in SIZES}
        own: dict[Any, Any] = STYLE
        logging.getLogger("fontTools.ttLib.tables._h_e_a_d").setLevel(logging.ERROR)  # it doubts the dates of fonts
        try:
            matplotlib.RcParams(own)
        except (KeyError, ValueError) as fault:
            raise InvalidInput(f"plotting.STYLE: {fault.args[0]}") from fault
        with matplotlib.rc_context({**house, **sizes, **own}):
            made = draw(*arguments, **options)
            if isinstance(made, matplotlib.figure.Figure):  # fonts are chosen when a file is written; notebooks show it
                fonts = {name: matplotlib.rcParams[name] for name in ("pdf.fonttype", "ps.fonttype", "svg.fonttype")}
                vars(made).update(savefig=partial(_save_with, fonts, made.savefig), _repr_png_=partial(_png, made))
            return made

    return draw_in_style


def scale_text(size: float) -> float:
    """A size of text in points, as large as the user's "font.size" makes it."""
    import matplotlib

    return size * float(matplotlib.rcParams["font.size"]) / HOUSE_SIZE


def sheet(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (6.4, 4.2), **options: Any
) -> tuple[Figure, Any]:
    """A figure of rows x columns axes, and the axes as `matplotlib.figure.Figure.subplots` gives them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, **options)


def space(figure: Figure, cell: Any = 111, *, labels: tuple[str, str, str] = ("x", "y", "z"), **view: Any) -> Any:
    """Three-dimensional axes with light panes and labels; `view` is elev, azim."""
    axes: Any = figure.add_subplot(cell, projection="3d")
    for axis, label in zip((axes.xaxis, axes.yaxis, axes.zaxis), labels, strict=True):
        axis.set_pane_color((1.0, 1.0, 1.0, 0.0))
        axis._axinfo["grid"].update(color=LIGHT, linewidth=0.5)
        axis.set_label_text(label)
        axis.set_rotate_label(len(label) > MAX_UPRIGHT)  # turned along its axis, a symbol can stand on its head
    axes.view_init(**{"elev": 22, "azim": -58, **view})
    return axes


def curve(axes: Axes, t: Any, values: Any, **style: Any) -> None:
    """Draw |values| on a logarithmic axis; `show_zeros` puts exact zeros on a line of their own."""
    sizes = np.abs(np.asarray(values))
    turns = np.count_nonzero(np.diff(np.sign(np.diff(sizes))))
    axes.plot(np.asarray(t), sizes, **({"linewidth": 0.5} if turns > TURNS_OF_NOISE else {}) | style)
    axes.set_gid(MAGNITUDES)
    if np.any(sizes > 0.0):
        axes.set_yscale("log")


def show_zeros(axes: Axes) -> None:
    """Draw the exact zeros of curves on a logarithmic axis one decade below the rest, on a line that is marked 0.

    Below `ROUND_OFF` the axis is linear down to that line: what is noise there does not look like structure. Axes that
    share their scale get one such line, below the curves of all of them.
    """
    group = axes.get_shared_y_axes().get_siblings(axes)
    lines = [line for each in group for line in each.lines]
    heights = [np.asarray(line.get_ydata(), float) for line in lines]
    positive = np.concatenate([np.zeros(0), *(y[np.isfinite(y) & (y > 0.0)] for y in heights)])
    noise = len(positive) > 0 and (positive.min() < ROUND_OFF or positive.max() < 100.0 * ROUND_OFF)
    noise = noise and not ROUND_OFF**1.5 < positive.max() < ROUND_OFF  # the errors of something small are no noise
    if axes.get_gid() != MAGNITUDES or not (noise or any(np.any(y == 0.0) for y in heights)):
        return
    for each in group:
        each.set_gid("")  # once is enough
    if not len(positive):
        axes.set(ylim=(-1.0, 1.0), yticks=[0.0])
        for each in group:
            each.text(0.5, 0.54, "exactly 0", ha="center", va="bottom", transform=each.transAxes, color=GREY)
        return
    least = ROUND_OFF if noise else positive.min()
    low, high = (int(np.floor(np.log10(each) + 1e-9)) for each in (least, positive.max()))
    floor, below = 10.0 ** (low - 1), ROUND_OFF if noise else 5e-324
    high = max(high, low + 3) if noise else high  # nothing but round-off: a band near 0
    for line, y in zip(lines, heights, strict=True):
        line.set_ydata(np.where(y < below, floor * 10.0 ** (np.minimum(y, below) / below), y))
    figure: Any = axes.figure
    room = min(7, max(2, int(axes.get_position().height * figure.get_figheight() / LABEL_INCHES)))
    gap = -(-(high + 1 - low) // room)
    decades = [k for k in range(high, low - 1, -gap) if k + 1 - low >= 0.8 * gap]  # none on the 0
    for each in group:
        each.set(yscale="log", ylim=(floor / 3.0, 10.0 ** max(high + 0.3, np.log10(positive.max()) + 0.2)))
        each.set_yticks([floor, *(10.0**k for k in decades)], ["0", *(f"$10^{{{k}}}$" for k in decades)])
        each.minorticks_off()
        each.axhline(floor, color=LIGHT, linewidth=0.8, zorder=0)


def break_turns(angle: Any) -> Any:
    """An angle over time that is not drawn where it begins a new turn: its curve has a gap there."""
    return np.where(np.abs(np.diff(angle, prepend=angle[..., :1])) > np.pi, np.nan, angle)


def label_ends(axes: Axes, size: float = 7.0) -> None:
    """Write the label of every line beside its end, in its colour, moved apart where they would overlap.

    Where many curves are 0, or nothing but round-off, one label counts them: no fan of names leads to one point.
    """
    ends, size = list[tuple[float, str, Any, tuple[float, float]]](), scale_text(size)
    low, high = (np.log10(each) if axes.get_yscale() == "log" else each for each in axes.get_ylim())
    zero = axes.get_yscale() == "log" and [text.get_text() for text in axes.get_yticklabels()][:1] == ["0"]
    tops = {"exactly 0": 1.001 * axes.get_yticks()[0] if zero else 0.0, "round-off": 10.0 * ROUND_OFF * zero}
    alike: dict[str, list[Any]] = {kind: [] for kind in tops}
    for line in axes.lines:
        x, y = (np.asarray(each, float) for each in line.get_data())
        good = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & ((y > 0.0) | (axes.get_yscale() != "log")))
        if len(good) and not str(line.get_label()).startswith("_"):
            value = np.log10(y[good[-1]]) if axes.get_yscale() == "log" else y[good[-1]]
            place, end = (value - low) / (high - low), (x[good[-1]], y[good[-1]])
            ends.append((place, str(line.get_label()), line.get_color(), end))
            if kind := next((kind for kind, top in tops.items() if y[good].max() <= top), ""):
                alike[kind].append(ends[-1])
    kind, most = max(alike.items(), key=lambda each: len(each[1]))
    if len(most) > MAX_FAN:
        place, end = sorted((each[0], each[3]) for each in most)[len(most) // 2]
        others = f"the {len(most)} others" if len(most) < len(ends) else f"all {len(most)}"
        ends = [each for each in ends if each not in most] + [(place, f"{kind}: {others}", GREY, end)]
    ends.sort(key=lambda end: end[0])
    figure: Any = axes.figure
    height = axes.get_position().height * figure.get_figheight() * 72.0
    gap, places = min(1.25 * size / height, 1.0 / max(len(ends), 1)), list[float]()
    for at, *_ in ends:
        places.append(max(at, places[-1] + gap) if places else max(at, 0.0))
    over = max(0.0, places[-1] - 1.0) if places else 0.0
    for k in range(len(places) - 1, -1, -1):  # push down from the top what stands above the axes
        limit = 1.0 if k == len(places) - 1 else places[k + 1] - gap
        places[k] = min(places[k], limit) if over else places[k]
    for (_, label, colour, end), place in zip(ends, places, strict=True):
        axes.annotate(
            label, end, xytext=(1.03, place), textcoords="axes fraction", va="center", fontsize=size, color=colour,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1,
                        "relpos": (0.0, 0.5)},
        )  # fmt: skip


def label_directly(figure: Figure) -> None:
    """Write names beside the ends of curves over time in place of the legends under them, where names are short."""
    found = [(axes, legend) for axes in figure.axes if axes.get_xlabel() == TIME and (legend := axes.get_legend())]
    short = [(axes, legend) for axes, legend in found if max(map(_letters, legend.get_texts())) <= MAX_DIRECT]
    for axes, legend in short:
        show_zeros(axes)
        legend.remove()
    figure.draw_without_rendering()  # the places of labels follow from the sizes of the axes
    for axes, _ in short:
        label_ends(axes, 8.0)


def _letters(text: Any) -> int:
    return len(re.sub(r"\\[a-z]+|[\\{}$^_]", "", text.get_text()))


def typeset(text: str) -> str:
    """A formula or the name of a group, as this program writes it in plain text, in Matplotlib's mathematics."""
    return TYPESET.get(text) or re.sub(r"(S[OEL]|R)(\^?)(\(?\w+\)?)( x )?", _typeset_group, text)


def _typeset_group(found: re.Match[str]) -> str:
    name, power, size, times = found.groups()
    if not power and not size.startswith("("):
        return found[0]
    made = rf"\mathbb{{R}}^{{{size}}}" if name == "R" else rf"\mathrm{{{name}}}{size}"
    return f"${made}$" + (r" $\times$ " if times else "")


TYPESET = {
    "|E - E(0)|": r"$|E - E(0)|$",
    "|E - E(0) - work|": r"$|E - E(0) - W|$",
    "|A xi - b|": r"$\|A\xi - b\|$",
    "|R^T R - 1|": r"$\|R^{\!\top} R - 1\|$",
    "|g - G|": r"$\mathrm{dist}(g, G)$",
    "|g - G|, |A xi - b|": r"$\mathrm{dist}(g, G)$,  $\|A\xi - b\|$",
    "|h|": r"$|h|$",
    "xi": r"$\xi$",
}


SYMBOL = re.compile(
    r"\$[^$]*\$|\b(?:1|(\d[\d.]*))e([+-]\d+)\b"
    r"|\bD_ε|\b([a-zA-Z])(\d{1,2})\b|(?:^|(?<=: ))[wvxyz](?=,|$| rate\b)|[βελω]|\b[ht](?= = )"
)


def set_symbols(text: str) -> str:
    """A text with its symbols as mathematics: w1 is an omega with an index, x and h = 0.1 are italic, 1e-16 a power."""
    return SYMBOL.sub(_set_symbol, text)


def _set_symbol(found: re.Match[str]) -> str:
    factor, power, letter, index = found[1], found[2], found[3] or found[0], found[4]
    if letter.startswith("$"):
        return letter
    if power:
        return (rf"${factor} \times " if factor else "$") + f"10^{{{int(power)}}}$"
    letter = {"w": r"\omega", "ε": r"\varepsilon", "D_ε": r"D_\varepsilon"}.get(letter, letter)
    return f"${letter}_{{{index}}}$" if index else f"${letter}$"


def unit_label(name: str, unit: str) -> str:
    """ "speed, m/s": a name with its unit as people print it."""
    return ", ".join(filter(None, (set_symbols(name), print_unit(unit))))


def label_quantity(name: str, units: Mapping[str, str]) -> str:
    """A measured quantity with its unit: "x, m" of position_0, "speed, m/s" of velocity_speed."""
    kind, _, rest = name.partition("_")
    if kind == "velocity" and rest in units:
        return unit_label(rest, units[rest])
    if kind == "position" and rest in ("0", "1", "2"):
        return unit_label("xyz"[int(rest)], "m")
    return unit_label(name.replace("_", " "), units.get(name, "rad" if kind == "angle" else ""))


def print_unit(unit: str) -> str:
    """m/s of "m s-1", $\\mathrm{kg\\,m^2/s}$ of "kg m2 s-1"; as it is where it is no product of powers."""
    parts = [re.fullmatch(r"([A-Za-z]+)(-?\d+)?", part) for part in unit.split()]
    if not parts or not all(parts):
        return unit
    powers = [(part[1], int(part[2] or 1)) for part in parts if part]
    named = [(name if abs(power) == 1 else f"{name}^{{{abs(power)}}}", power > 0) for name, power in powers]
    sides = [r"\,".join(name for name, above in named if above == side) for side in (True, False)]
    return rf"$\mathrm{{{sides[0] or '1'}{'/' * bool(sides[1])}{sides[1]}}}$"


def name_points(
    axes: Axes, points: Sequence[tuple[float, float, str, str]], others: Sequence[tuple[float, float]] = ()
) -> None:
    """Write the names of points (x, y, name, colour) beside them: none upon another, a line or one of the `others`."""
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    figure: Any = axes.figure
    figure.draw_without_rendering()  # the axes get the size that they will have
    room, point = axes.get_window_extent(), figure.dpi / 72.0
    dots = [axes.transData.transform(at) for at in (*((x, y) for x, y, *_ in points), *others)]
    taken, lines = [Bbox([dot - 3, dot + 3]) for dot in dots], list[Any]()
    sides = [(right, up) for up in range(-45, 46, 9) for right in (6, -6, 20, -20, 40, -40) if up or abs(right) == 6]
    for x, y, name, colour in sorted(points, key=lambda each: -each[1]):
        arrow = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "shrinkA": 0, "shrinkB": 2}
        looks: dict[str, Any] = {"color": colour, "fontsize": scale_text(7), "va": "center", "arrowprops": arrow}
        text: Any = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", in_layout=False, **looks)
        text.update_positions(figure._get_renderer())
        dot, size = axes.transData.transform((x, y)), Text.get_window_extent(text).size + np.array([6.0, 2.0])
        found = []
        for right, up in sides:
            near = dot + point * np.array([right, up])
            box = Bbox.from_bounds(*(near - size * [right < 0, 0.5]), *size)
            line = dot + np.linspace(0.15, 1.0, 20)[:-1, None] * (near - dot) * bool(up)
            upon = sum(map(box.overlaps, taken)) + 10 * (not (room.contains(*box.p0) and room.contains(*box.p1)))
            crossed = sum(box.contains(*at) for each in lines for at in each)
            crossed += sum(other.contains(*at) for other in taken for at in line if not other.contains(*dot))
            found.append((1e4 * upon + 100.0 * crossed + np.hypot(right, 1.5 * up), (right, up), box, line))
        _, text.xyann, box, line = min(found, key=lambda each: each[0])
        text.set_horizontalalignment("right" if text.xyann[0] < 0 else "left")
        text.arrow_patch.set_visible(bool(text.xyann[1]))
        taken.append(box)
        lines.append(line)


def legend_under_all(figure: Figure, handles: Sequence[Any]) -> None:
    """One legend under all axes of a figure, in as many columns as its names leave room for."""
    size = scale_text(8)
    widest = max((len(str(handle.get_label())) for handle in handles), default=1)
    columns = max(1, int(72 * figure.get_figwidth() / (0.5 * size * widest + 4.0 * size)))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(columns, len(handles)), fontsize=size)


def legend_below(axes: Axes, columns: int = 2, pad: float = 4.2) -> None:
    """The legend of axes under them; `pad`, in letters, is the room for ticks and their label."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), borderaxespad=pad, ncols=columns)


WORD = re.compile(r"(?: = | \$\\times\$ |(?<=\d) s\b|\$[^$]*\$|[^\s$])+")
"""What stays in one line: formulas, equations with their unit, products of groups."""


def headline(figure: Figure, text: str) -> None:
    """The title of a figure, at its left, in as many lines as it needs; no line ends inside a formula."""
    words = figure.suptitle(text, x=0.01, ha="left")
    wide = max(20, int(72 * figure.get_figwidth() / (0.52 * float(words.get_fontsize()))))  # letters in a line, about
    lines, used = [list[str]()], 0
    for word in WORD.findall(text):
        letters = len(re.sub(r"\\[a-z]+(?=\{)|[\\{}$^_]", "", word))
        if lines[-1] and used + letters > wide:
            lines.append([])
            used = 0
        lines[-1].append(word)
        used += letters + 1
    words.set_text("\n".join(map(" ".join, lines)))


def save(figure: Figure, path: str | Path | None, title: str | None = None) -> Figure:
    """Give the figure its title, and write it where a path is given: the suffix decides the format."""
    from matplotlib.text import Text

    for axes in figure.axes:
        show_zeros(axes)
    if title is not None:
        headline(figure, title)
    words: Any
    for words in figure.findobj(Text):
        words.set_text(set_symbols(words.get_text()))
    if path is not None:
        suffix, known = Path(path).suffix.removeprefix("."), figure.canvas.get_supported_filetypes()
        if suffix not in known:
            raise InvalidInput(f"the picture is {path}; allowed: a file that ends in .png, .pdf or .svg")
        if not Path(path).parent.is_dir():
            raise InvalidInput(f"the picture is {path}, but the folder {Path(path).parent} does not exist")
        figure.savefig(path, dpi=DOTS_PER_INCH)
    return figure


def _save_with(fonts: Any, write: Callable[..., None], *arguments: Any, **options: Any) -> None:
    import matplotlib

    with matplotlib.rc_context(fonts):
        write(*arguments, **options)


def _png(figure: Figure, dpi: float | None = None) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi or figure.dpi)
    return stream.getvalue()
