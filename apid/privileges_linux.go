package apid

import "github.com/orlop-os/orlop/pkg/kernel/confine"

// giveUpPrivileges drops all privileges and restricts the process to its own directory. machined
// already starts apid without most of them; this does not rely on that. Before the call, the port
// must be open and the log connected.
func giveUpPrivileges(dir string) error {
	return confine.Process(confine.Rules{Dirs: []string{dir}, Calls: systemCalls, UnixSockets: true})
}
