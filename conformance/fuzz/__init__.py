"""Fuzzing of whole calls: the fuzzer's bytes become an evil array, and what is done with it."""
