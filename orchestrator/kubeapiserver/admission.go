package kubeapiserver

import (
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// ownPlugins are the admission plugins that are compiled in. They say what RBAC cannot, and no
// object of the cluster takes them away. Policies (ValidatingAdmissionPolicy) could say it, too,
// but they make the server build the whole of its OpenAPI documents at its start
// (docs/decisions/0006-openapi-when-asked.md).
var ownPlugins = []struct {
	name string
	make admission.Factory
}{
	{NodeAgentAccess, always(nodeAgents{admission.NewHandler(admission.Create, admission.Update, admission.Delete)})},
	{NodeAnnotations, always(nodeNotes{admission.NewHandler(admission.Create, admission.Update)})},
	{ReservedNamespaces, always(reservedNamespaces{admission.NewHandler(admission.Create, admission.Delete)})},
	{MachinePorts, newMachinePorts},
}

// always makes the same plugin, which has no configuration.
func always(plugin admission.Interface) admission.Factory {
	return func(io.Reader) (admission.Interface, error) { return plugin, nil }
}

// registerPlugins adds them to those that the flags can name.
func registerPlugins(opts *options.ServerRunOptions) {
	generic := opts.Admission.GenericAdmission
	generic.RecommendedPluginOrder = slices.Clone(generic.RecommendedPluginOrder)
	for _, own := range ownPlugins {
		generic.Plugins.Register(own.name, own.make)
		generic.RecommendedPluginOrder = append(generic.RecommendedPluginOrder, own.name)
		generic.DefaultOffPlugins.Insert(own.name)
	}
}
