"""Commands about rights: rules, answers, trust."""
