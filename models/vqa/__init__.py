"""Visual question answering: a question and the regions of a photograph give an answer."""

from models.vqa.answers import AnswerModel, Likelihood
from models.vqa.bottom_up import BottomUp
from models.vqa.mcan import MCAN, MCANSizes
from models.vqa.multi_view import MultiView

__all__ = ["MCAN", "AnswerModel", "BottomUp", "Likelihood", "MCANSizes", "MultiView"]
