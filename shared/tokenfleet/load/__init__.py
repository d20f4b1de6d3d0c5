"""What every instance is busy with, and what a request would meet there. Pure; all deciders use the same.

`view` applies what happens to requests; `shadow` follows one engine by it; `table` holds all shadows as arrays;
`predict` answers for many instances at once; `lengths` learns how long answers are.
"""

from tokenfleet.load.lengths import OutputLengths
from tokenfleet.load.predict import Outlook, Predictions, outlook, predict
from tokenfleet.load.shadow import Observation
from tokenfleet.load.view import LoadView

__all__ = [
    "LoadView",
    "Observation",
    "Outlook",
    "OutputLengths",
    "Predictions",
    "outlook",
    "predict",
]
