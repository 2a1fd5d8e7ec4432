"""`ridgeline bench` measures a server under load (bench_serve.py) or an engine (bench_engine.py)."""

import typer

from ridgeline.cli.bench_engine import engine
from ridgeline.cli.bench_serve import serve
from ridgeline.cli.examples import EXAMPLES

bench = typer.Typer(
    help="Measure a server under load, or the engine compared with this machine's limits.",
    epilog=f"\b\nThe engine:  {EXAMPLES['bench engine']}\nA server:    {EXAMPLES['serve']}, then elsewhere "
    f"{EXAMPLES['bench serve']}",
)
bench.command()(serve)
bench.command()(engine)
