package report

// The files of the page.
const (
	PageName = "performance.md"
	PlotName = "performance.svg"
	JSONName = "performance.json"
)

// Page is the page.
func Page(*Report) []byte { return nil }
