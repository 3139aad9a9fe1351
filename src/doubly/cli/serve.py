"""The local page of a run: serve."""

import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from doubly.cli.formatting import AllowCode
from doubly.core.extras import extra


@dataclass(frozen=True)
class Serve:
    """Open a local page on a run: erase and complete, look through the samples, complete tables; with a JSON API."""

    folder: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN", help="A run folder, or a file of doubly export.")
    ]
    allow_code: AllowCode = False
    port: int = 8321
    """The port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """The address to listen on. Others than 127.0.0.1 let other machines ask: there are no passwords."""
    allow: tuple[str, ...] = ()
    """Further names of this machine by which the page may be opened; others are refused."""
    refit: int = 0
    """Passes over the training rows that fit a proposal to each sample of the weights before the first answer."""
    threads: int = 1
    """Threads to compute with."""
    open: bool = False
    """Open the page in a browser."""

    def run(self) -> None:
        from doubly.runs.fit import use_threads
        from doubly.serve.model import opened

        with extra("serve", "doubly serve"):
            from doubly.serve.run import bound, serve
        listening = bound(self.host, self.port)
        with listening, use_threads(self.threads):
            served = opened(self.folder, self.refit, self.allow_code)
            print("doubly: getting ready …", file=sys.stderr, flush=True)
            served.warm_up()
            serve(served, listening, self.allow, self.threads, self.open)
