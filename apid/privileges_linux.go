package apid

import "github.com/orlop-os/orlop/pkg/confine"

// giveUpPrivileges makes sure that the process can gain nothing and sees nothing but its own
// folder. machined starts apid without most of that; this does not rely on it. The port must be
// open and the log be connected when it is called.
func giveUpPrivileges(dir string) error {
	return confine.Process(confine.Rules{Dir: dir, Calls: systemCalls, UnixSockets: true})
}
