"""Factories of models. Contract: `model(**batch).loss` is a scalar; labels are not shifted by the caller."""
