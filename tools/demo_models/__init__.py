"""The recipe of the models that ship with lexray; `tools/train_demo.py` is its command line."""
