"""What front ends show: one view model of transcripts, tool calls, approvals, diffs, notices and figures.

The terminal, the page, the editor protocol, the command line, `jobs follow` and the shared HTML file render these
values and decide only how they look. Nothing here draws, prints or reads a store."""
