package main

import (
	"github.com/orlop-os/orlop/orchestrator/addons"
	"github.com/orlop-os/orlop/orchestrator/apivip"
	"github.com/orlop-os/orlop/orchestrator/balancer"
	"github.com/orlop-os/orlop/orchestrator/bootstrap"
	"github.com/orlop-os/orlop/orchestrator/component"
	"github.com/orlop-os/orlop/orchestrator/controllermanager"
	"github.com/orlop-os/orlop/orchestrator/coredns"
	"github.com/orlop-os/orlop/orchestrator/dirs"
	"github.com/orlop-os/orlop/orchestrator/drain"
	"github.com/orlop-os/orlop/orchestrator/etcd"
	"github.com/orlop-os/orlop/orchestrator/extensions"
	"github.com/orlop-os/orlop/orchestrator/kubeapiserver"
	"github.com/orlop-os/orlop/orchestrator/kubelet"
	"github.com/orlop-os/orlop/orchestrator/kubeproxy"
	"github.com/orlop-os/orlop/orchestrator/l2announcer"
	"github.com/orlop-os/orlop/orchestrator/leaderelection"
	"github.com/orlop-os/orlop/orchestrator/loadbalancer"
	"github.com/orlop-os/orlop/orchestrator/localvolumes"
	"github.com/orlop-os/orlop/orchestrator/metrics"
	"github.com/orlop-os/orlop/orchestrator/netpolicy"
	"github.com/orlop-os/orlop/orchestrator/nodecontrollers"
	"github.com/orlop-os/orlop/orchestrator/nodelabels"
	"github.com/orlop-os/orlop/orchestrator/offlineapi"
	"github.com/orlop-os/orlop/orchestrator/podcertificates"
	"github.com/orlop-os/orlop/orchestrator/podnetwork"
	"github.com/orlop-os/orlop/orchestrator/portguard"
	"github.com/orlop-os/orlop/orchestrator/scheduler"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// Services returns the components of every process of the node, with all flags and files. It is
// pure: the same spec gives the same components, and nothing is started. testdata/*.golden show the
// result for some specs.
func Services(spec nodespec.Spec, dirs dirs.Dirs) []component.Component {
	var all []component.Component
	if spec.ControlPlane {
		all = append(all,
			etcd.Component(spec, dirs),
			kubeapiserver.Component(spec, dirs),
			component.Component{Process: component.API, Name: bootstrap.Name},
			component.Component{Process: component.API, Name: extensions.Name},
		)
		if leaderelection.NeedsElection(spec) {
			all = append(all, leaderelection.Component(spec, dirs))
		}
		all = append(all,
			nodecontrollers.IPAMComponent(spec, dirs),
			nodecontrollers.NamespacesComponent(spec, dirs),
			controllermanager.Component(spec, dirs),
			scheduler.Component(spec, dirs),
			metrics.Component(spec, dirs),
			addons.Component(spec, dirs),
			nodelabels.Component(spec, dirs),
		)
		all = append(all, loadbalancer.Component(spec, dirs))
		all = append(all, localvolumes.Controllers(spec, dirs)...)
		all = append(all, podcertificates.Components(spec, dirs)...)
	}
	all = append(all, balancer.Components(spec)...)
	all = append(all, offlineapi.Components(spec, dirs)...)
	all = append(all,
		kubelet.Component(spec, dirs),
		kubeproxy.Component(spec, dirs),
		coredns.Component(spec, dirs),
		drain.Component(),
		nodelabels.NodeComponent(spec, dirs),
		netpolicy.Component(spec, dirs),
		portguard.Component(spec, dirs),
	)
	all = append(all, podnetwork.Components(spec, dirs)...)
	all = append(all, localvolumes.Nodes(spec, dirs)...)
	all = append(all, l2announcer.Components(spec, dirs)...)
	return append(all, apivip.Components(spec)...)
}
