"""How results look in the app: words first, numbers second; everything a link."""
