package shell

// For the tests of the package's outside.
const (
	MaxSessions = maxSessions
	MaxCommand  = maxCommand
	MaxCells    = maxCells
)
