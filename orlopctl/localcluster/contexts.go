package localcluster

import (
	"github.com/orlop-os/orlop/orlopctl/contexts"
	"github.com/orlop-os/orlop/orlopctl/gen"
	"github.com/orlop-os/orlop/orlopctl/kubeconfig"
	"github.com/orlop-os/orlop/pkg/paths"
	"github.com/orlop-os/orlop/vm"
)

// moveContexts updates the addresses in the contexts of a local cluster's machines. It does not
// change contexts of another cluster with the same name.
func moveContexts(name string, own *gen.Secrets, now vm.Status) error {
	return contexts.Change(func(f *contexts.File) error {
		for _, m := range now.Machines {
			context := contextOf(name, m.Name)
			stored, exists := f.Contexts[context]
			address := now.Forward(m.Name, paths.PortApid)
			if exists && address != "" && own.HasMachineCA(stored.CA) {
				stored.Endpoint = address
				f.Contexts[context] = stored
			}
		}
		return nil
	})
}

// removeClusterContexts removes a local cluster from the contexts and from the kubeconfig. An entry
// with the same name and another CA belongs to another cluster and stays.
func removeClusterContexts(name string, own *gen.Secrets) error {
	err := contexts.Change(func(f *contexts.File) error {
		for _, one := range clusterContexts(name) {
			if own.HasMachineCA(f.Contexts[one].CA) {
				f.Forget(one)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	path, err := kubeconfig.Path()
	if err != nil {
		return err
	}
	return kubeconfig.RemoveCluster(path, name, own.Kubernetes.Cert+own.Next["kubernetes"].Cert)
}

// known returns the context of a machine. The CA of the cluster verifies the machine.
func (c *creation) known(m member) contexts.Context {
	return contexts.Context{
		Endpoint: m.apiAddress, ServerName: m.status.Name, CA: c.secrets.Machine.Cert, Cert: string(c.admin.cert), Key: string(c.admin.key), Operator: c.admin.dir,
	}
}
