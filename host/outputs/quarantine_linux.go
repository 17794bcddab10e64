package outputs

// quarantine is how this system marks what came from elsewhere: not at all.
func quarantine() marker { return unmarked{} }
