"""A finished study as files small enough for git (records, report, numbers), and a study made of them again."""
