"""How many rows of a built-in data set train and how many evaluate: one rule for the data set and for its lock."""

EVAL_SHARE = 20
"""One row in 20 (5 %) is kept for evaluation."""


def split_sizes(num_rows: int) -> dict[str, int]:
    """Rows by split: the last 5 % (at least one) are `eval`, those before are `train`."""
    num_eval = max(1, num_rows // EVAL_SHARE)
    return {"train": num_rows - num_eval, "eval": num_eval}
