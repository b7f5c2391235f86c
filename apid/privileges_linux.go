package apid

import "github.com/orlop-os/orlop/pkg/kernel/confine"

// giveUpPrivileges drops all privileges and restricts the process to the directory dir. machined
// already starts apid without most privileges; giveUpPrivileges does not depend on that. The caller
// must have opened the port and the log before.
func giveUpPrivileges(dir string) error {
	return confine.Process(confine.Rules{Dirs: []string{dir}, Calls: systemCalls, UnixSockets: true})
}
