"""What a workspace brings with it: trust, instructions, skills, servers; and the sandbox around its commands."""
