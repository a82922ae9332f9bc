"""What all parts of the spec rest on.

Every class is frozen and refuses unknown keys: a misspelled key must never quietly lose a setting.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0)]
Rate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """Base of all parts of the spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)
