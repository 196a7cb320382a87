"""Options that several verbs take: each is declared once, with its one help text."""

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.verb import LAYERS

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder or file to write.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the code that the run folder names, though you did not make that run.")
]
What = Annotated[
    str,
    typer.Option(help="outputs (of every class), predictions, probabilities, or embeddings (the last hidden layer)."),
]
At = Annotated[
    str | None,
    typer.Option("--at", help="Where edges have times: a time or date, and vertices are seen as they were then."),
]
RunArgument = Annotated[Path, typer.Argument(help="Run folder.")]

# What a run is
ConfigFile = Annotated[Path | None, typer.Argument(help="YAML file of settings; options come on top of it.")]
Data = Annotated[str | None, typer.Option(help="Data set name, graph folder, partition folder, .npz file.")]
Model = Annotated[str | None, typer.Option(help=f"{LAYERS}, or package.module:name.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Processes on this machine.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Any setting, section.key=value; see 'weft settings'.")
]

# How edge files are read: by `ingest`, and by `partition` where it cuts a graph straight from them
EDGE_FILES = "Edge files"
SrcColumn = Annotated[str | None, typer.Option(help="Column of the edges' sources.", rich_help_panel=EDGE_FILES)]
DstColumn = Annotated[str | None, typer.Option(help="Column of the edges' destinations.", rich_help_panel=EDGE_FILES)]
WeightColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the edges' weights; for 'weft partition' with .npy edges a .npy file.",
        rich_help_panel=EDGE_FILES,
    ),
]
RelationColumn = Annotated[
    str | None,
    typer.Option(help="Column of the edges' relations (kinds), integers or names.", rich_help_panel=EDGE_FILES),
]
TimeColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the edges' times, numbers or dates; for .npy edges a .npy file.", rich_help_panel=EDGE_FILES
    ),
]
VertexTimeColumn = Annotated[
    str | None, typer.Option(help="Column of the vertices' times in a table of vertices: each sees no later edges.")
]
EdgeFeatures = Annotated[
    str | None,
    typer.Option(help="Columns of the edges' features, with commas between them.", rich_help_panel=EDGE_FILES),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether text files name their columns.", rich_help_panel=EDGE_FILES),
]
NumNodes = Annotated[
    int | None,
    typer.Option(min=1, help="Vertices are 0..N-1, also those without edges.", rich_help_panel=EDGE_FILES),
]
NumClasses = Annotated[
    int | None, typer.Option(min=1, help="Where the labels do not show every class.", rich_help_panel=EDGE_FILES)
]
LabelKind = Annotated[
    str | None,
    typer.Option(
        help="What labels are: classes, or numbers to predict. Unless given, 'weft ingest' takes fractions for "
        "numbers, and 'weft partition' refuses them."
    ),
]
Undirected = Annotated[bool, typer.Option("--undirected", help="Add every edge's reverse.", rich_help_panel=EDGE_FILES)]
IdColumn = Annotated[str | None, typer.Option(help="Column of the vertices' ids in the vertex files.")]
LabelColumn = Annotated[
    list[str] | None, typer.Option(help="Column of the labels; several make several labels per vertex.")
]
SplitColumn = Annotated[str | None, typer.Option(help="Column that says train, val or test.")]
VertexData = Annotated[
    list[str] | None,
    typer.Option(
        help="Further data of vertices, NAME=FILE.npy, [N, ...]; may be repeated.", rich_help_panel=EDGE_FILES
    ),
]
GraphName = Annotated[str | None, typer.Option(help="Name of the graph.", rich_help_panel=EDGE_FILES)]

# How the columns of a table of features are prepared
FEATURE_COLUMNS = "Columns of a features table (docs/tables.md)"


def _columns(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, rich_help_panel=FEATURE_COLUMNS)
    return option


FeatureColumns = Annotated[
    str | None, _columns("Columns that are features, with commas between them; all others are not.")
]
IgnoreColumns = Annotated[str | None, _columns("Columns that are no features, with commas between them.")]
CategoryColumns = Annotated[str | None, _columns("Columns whose values are names, though they may look like numbers.")]
LearnedColumns = Annotated[
    str | None, _columns("Columns of names with many values, of each of which models learn a row of numbers.")
]
LogColumns = Annotated[str | None, _columns("Columns of numbers with long tails, whose logarithms are taken.")]
PreparedAs = Annotated[
    Path | None,
    typer.Option(
        help="Graph or partition folder: columns become what they became there.", rich_help_panel=FEATURE_COLUMNS
    ),
]
RawFeatures = Annotated[
    bool,
    typer.Option("--raw-features", help="Take numbers as they are, unscaled.", rich_help_panel=FEATURE_COLUMNS),
]
