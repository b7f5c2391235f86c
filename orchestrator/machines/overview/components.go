package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/machineapi"
	"github.com/orlop-os/orlop/pkg/nodespec"
)

// These are the extension points in Component.status.extensions.
const (
	PointAdmission      = "admission"
	pointAuthentication = "authentication"
	pointAuthorization  = "authorization"
	PointScheduling     = "scheduling"
)

// Extension.Source is one of these, or the kind of the Kubernetes object that registers the
// extension, for example ValidatingAdmissionPolicy.
const (
	BuiltIn       = "BuiltIn"
	Configuration = "Configuration"
)

// apiServer is the component with the extension points admission, authentication and authorization.
const apiServer = "kube-apiserver"

// addonPrefix begins the name of the Component object of an add-on. Names of other components have
// no dot, so the two kinds of names cannot collide.
const addonPrefix = "addon."

// servicePrefix begins the names of the services that run the processes. For example,
// nodespec.ServiceNode is servicePrefix and "node".
const servicePrefix = "orchestrator-"

// processAddon is the value of Component.status.process for an add-on.
const processAddon = "addon"

// components returns the wanted Component objects, each with its condition Ready, sorted by name.
func (s Snapshot) components() []*machineapi.Component {
	var all []*machineapi.Component
	for _, p := range s.Parts {
		if slices.ContainsFunc(all, func(c *machineapi.Component) bool { return c.Name == p.Name }) {
			continue // a component that runs in two processes has one object
		}
		all = append(all, s.component(p))
	}
	for _, a := range s.Addons {
		c := &machineapi.Component{ObjectMeta: s.meta(addonPrefix + a.Name), Status: machineapi.ComponentStatus{Process: processAddon}}
		ready := metav1.Condition{Type: machineapi.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReady, Message: a.Line}
		if !a.Ready {
			ready.Status, ready.Reason = metav1.ConditionFalse, reasonNotReady
		}
		c.Status.Conditions = []metav1.Condition{ready}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *machineapi.Component) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// These are the reasons of the condition Ready of a Component.
const (
	reasonReady    = "Ready"
	reasonNotReady = "NotReady"
	reasonReplaced = "Replaced"
)

// component returns the wanted object of a component.
func (s Snapshot) component(p Part) *machineapi.Component {
	st := machineapi.ComponentStatus{Process: p.Process, RunsOn: p.RunsOn, Version: s.version(p), Extensions: p.Extensions}
	if p.Name == apiServer {
		rest := slices.Concat(p.Extensions, access(s.Report.Access))
		// users can create any number of webhooks and policies
		room := max(0, maxExtensions-len(rest))
		st.Extensions = slices.Concat(p.Extensions, s.Registered[:min(len(s.Registered), room)], access(s.Report.Access))
	}
	ready := metav1.Condition{Type: machineapi.ConditionReady, Status: metav1.ConditionTrue, Reason: reasonReady}
	switch {
	case p.RunsOn == External:
		st.Version, ready.Reason, ready.Message = "", reasonReplaced, "an add-on replaces it (Cluster.spec.external)"
	case !s.fresh():
		ready.Status, ready.Reason, ready.Message = metav1.ConditionUnknown, reasonStale, staleMessage
	default:
		missing := s.count(p, &st)
		switch {
		case p.RunsOn == Leader && !slices.Contains(missing, s.Own):
			// the component is ready on this machine; the other machines are standbys
		case len(missing) > 0:
			ready.Status, ready.Reason = metav1.ConditionFalse, reasonNotReady
			ready.Message = fmt.Sprintf("not ready on %d of %d machines", len(missing), st.Machines)
		}
	}
	if p.RunsOn == Leader {
		st.Active = s.Own
	}
	st.Conditions = []metav1.Condition{ready}
	return &machineapi.Component{ObjectMeta: s.meta(p.Name), Status: st}
}

// version returns the version of a component on this machine, or "" without a report of this
// machine.
func (s Snapshot) version(p Part) string {
	for _, m := range s.Report.Health.GetMachines() {
		if m.Name == s.Own && p.Kubernetes {
			return m.Kubernetes
		} else if m.Name == s.Own {
			return m.Version
		}
	}
	return ""
}

// count writes to st how many machines have to run a component, on how many it is ready, and on
// which it is not. It returns the sorted names of all machines on which the component is not ready.
func (s Snapshot) count(p Part, st *machineapi.ComponentStatus) (missing []string) {
	for _, m := range s.Report.Health.Machines {
		if !has(p, m) {
			continue
		}
		st.Machines++
		if runs(p, m) {
			st.ReadyMachines++
		} else {
			missing = append(missing, cmp.Or(m.Name, m.Address))
		}
	}
	slices.Sort(missing)
	st.NotReady = missing[:min(len(missing), maxListed)]
	return missing
}

// has reports whether a machine has to run a component.
func has(p Part, m *api.ClusterMachine) bool {
	return p.RunsOn == All || (p.RunsOn == Workers) == (m.Role == string(config.RoleWorker))
}

// runs reports whether a component is ready on a machine. If a process does not run, the report has
// the name of its service as a failed check instead of the component.
func runs(p Part, m *api.ClusterMachine) bool {
	return m.Problem == "" && !slices.Contains(m.Failed, p.Name) && !slices.Contains(m.Failed, servicePrefix+p.Process)
}

// access returns the authenticators and then the authorizers of the API server, in the order in
// which the API server calls them.
func access(a nodespec.AccessPoints) []machineapi.Extension {
	add := func(all []machineapi.Extension, point, source, name, detail string) []machineapi.Extension {
		return append(all, machineapi.Extension{Point: point, Name: name, Source: source, Detail: detail})
	}
	all := add(nil, pointAuthentication, BuiltIn, "client certificate", "the CA of the cluster")
	all = add(all, pointAuthentication, BuiltIn, "service account token", "")
	for _, url := range a.Issuers {
		all = add(all, pointAuthentication, Configuration, url, "token issuer")
	}
	if a.TokenWebhook != "" {
		all = add(all, pointAuthentication, Configuration, a.TokenWebhook, "webhook for tokens")
	}
	all = add(all, pointAuthentication, BuiltIn, "anonymous", "health endpoints only")
	all = add(all, pointAuthorization, BuiltIn, "Node", "")
	for _, w := range a.Authorizers {
		all = add(all, pointAuthorization, Configuration, w.Name, "webhook, failure policy "+w.FailurePolicy)
	}
	return add(all, pointAuthorization, BuiltIn, "RBAC", "")
}
