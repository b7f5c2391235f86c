package kubeapiserver

import (
	"io"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// ownPlugins are the compiled-in admission plugins. They enforce rules that RBAC cannot express,
// and no object of the cluster can remove them. A ValidatingAdmissionPolicy could express the rules
// too, but with policies the server builds all of its OpenAPI documents at its start
// (docs/decisions/0006-openapi-when-asked.md).
var ownPlugins = []struct {
	name string
	make admission.Factory
}{
	{NodeAgentAccess, always(nodeAgents{admission.NewHandler(admission.Create, admission.Update, admission.Delete)})},
	{NodeAnnotations, always(nodeAnnotations{admission.NewHandler(admission.Create, admission.Update)})},
	{ReservedNamespaces, always(reservedNamespaces{admission.NewHandler(admission.Create, admission.Delete)})},
	{MachineAccess, always(machineAccess{admission.NewHandler(admission.Create, admission.Update, admission.Delete)})},
	{MachinePorts, newMachinePorts},
	{SystemSubjects, always(systemSubjects{admission.NewHandler(admission.Create)})},
}

// always returns a factory for a plugin without configuration.
func always(plugin admission.Interface) admission.Factory {
	return func(io.Reader) (admission.Interface, error) { return plugin, nil }
}

// registerPlugins registers ownPlugins, so that flags can enable them.
func registerPlugins(opts *options.ServerRunOptions) {
	generic := opts.Admission.GenericAdmission
	generic.RecommendedPluginOrder = slices.Clone(generic.RecommendedPluginOrder)
	for _, own := range ownPlugins {
		generic.Plugins.Register(own.name, own.make)
		generic.RecommendedPluginOrder = append(generic.RecommendedPluginOrder, own.name)
		generic.DefaultOffPlugins.Insert(own.name)
	}
}
