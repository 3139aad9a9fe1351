"""The same models by scikit-learn's conventions, in memory, with no run folder.

`__init__` only stores, what is learnt ends in `_`, and what is learnt is arrays, so that it clones, pickles and goes
through joblib. Settings called "auto" are chosen from the table in `fit`.

frames       tables as scikit-learn's users have them, arrays and frames: checked, and given back as they came
arrays       arrays of bits or of real numbers as rows of the model, and back
chain        one chain for an array: sampled, with smaller steps where it diverges
answers      log p(x) and codes, row by row
imputer      DeepImputer
model        DeepGenerativeModel
"""

from doubly.core.extras import extra

with extra("sklearn", "DeepGenerativeModel or DeepImputer"):
    from doubly.sklearn.imputer import DeepImputer
    from doubly.sklearn.model import DeepGenerativeModel

__all__ = ["DeepGenerativeModel", "DeepImputer"]
