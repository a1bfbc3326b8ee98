"""The tools that come with Outrider: one module and its prompt each; `outrider.app` names them."""
