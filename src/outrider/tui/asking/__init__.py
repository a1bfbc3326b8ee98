"""Questions in place of the composer: about calls, of the model, of the program itself."""
