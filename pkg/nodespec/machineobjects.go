package nodespec

// MachineObjects is the content of MachineObjectsFile. It says whether objects of Kubernetes
// describe the machines of the cluster (docs/decisions/0090-machine-objects.md). The file is
// separate from the Spec, because its content may change while the components run.
type MachineObjects struct {
	Enabled bool `json:"enabled"`
	// Claims reports whether a MachineSet may claim waiting machines
	// (docs/decisions/0107-claims.md).
	Claims bool `json:"claims,omitempty"`
}
