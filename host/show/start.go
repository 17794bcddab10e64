package show

import "github.com/pybox/pybox/host/api"

// StartStep says what a start of the VM is at.
func StartStep(s api.Status) string {
	doing := "verifying the bundle"
	for _, st := range s.Stages {
		switch st.Name {
		case "bundle verified":
			doing = "starting the machine"
		case "machine started":
			doing = "waiting for the guest"
		}
	}
	return "Starting the VM: " + doing
}
