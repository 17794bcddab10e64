// Package report is what the program in a box tells enginecheck.
package report

// File is where the program leaves its Report, as JSON, in its working folder.
const File = "report"

// Report is what a program in a box finds.
type Report struct {
	// Status to Host are files of /proc, Dir is the working folder.
	Status, Mounts, Limits, UIDMap, Host, Dir string
	Env                                       []string
	Calls                                     []Call
}

// Call is something that the program tried: Want and Got are "ok", the name of an
// error number, or other text.
type Call struct{ Name, Want, Got string }
