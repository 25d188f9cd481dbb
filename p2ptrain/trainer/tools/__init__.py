"""Commands that load a model: generate text, compare exports, measure speed."""
