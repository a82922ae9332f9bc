"""The servers that are compared."""

import shlex
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from harness.spec_types import Strict

ArmName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]

BASELINE = "stock"


class SpinExpectation(Strict):
    """What the arm's server must report in `/server_info` for the arm to count as SPIN."""

    target_sparsity: Annotated[float, Field(ge=0, lt=1)]
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.03
    policy: str = "spin"


class Arm(Strict):
    """A server that the harness starts by `command` and `args`, or that runs at `base_url`.

    `{port}` in the command is replaced; `python` is ours. args are appended as they are.
    api: the endpoint that requests go to; generate needs --incremental-streaming-output.
    spin None: the server must NOT report a spin block, or the baseline is not the baseline.
    """

    command: Annotated[str, Field(min_length=1)] | None = None
    api: Literal["completions", "chat", "generate"] = "completions"
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    base_url: Annotated[str, Field(pattern=r"^https?://[^/]+$")] | None = None
    spin: SpinExpectation | None = None

    @model_validator(mode="after")
    def _one_server(self) -> Self:
        if (self.command is None) == (self.base_url is None):
            raise ValueError("an arm has either `command` or `base_url`")
        if self.base_url is not None and (self.args or self.env):
            raise ValueError("args and env belong to a command, a server at base_url has its own")
        if self.command is not None and "{port}" not in self.command:
            raise ValueError("command must contain {port}, the harness chooses a free one")
        if self.command is not None:
            try:
                shlex.split(self.command)
            except ValueError as error:
                raise ValueError(f"command cannot be split into words ({error})") from None
        return self
