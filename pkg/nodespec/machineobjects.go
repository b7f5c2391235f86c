package nodespec

// MachineObjects says whether objects of Kubernetes describe the machines of the cluster
// (docs/decisions/0090-machine-objects.md). It is in the file MachineObjectsFile, beside the Spec,
// because it may change while the components run.
type MachineObjects struct {
	Enabled bool `json:"enabled"`
	// Claims lets sets of machines take machines from the inventory
	// (docs/decisions/0107-claims.md).
	Claims bool `json:"claims,omitempty"`
}
