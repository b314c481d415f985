"""The kit's verdict on libraries: `python -m conformance.judged.run` judges those that are installed."""
