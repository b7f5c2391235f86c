package addons

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/orlop-os/orlop/pkg/nodespec"
)

const rbacGroup = rbacv1.GroupName

// Namespace is where the records are, and the service accounts that add-ons act as. Nobody else's
// account belongs there.
const Namespace = nodespec.AddonsNamespace

// grantLabel is on every role and binding of this package, so that those that are no longer wanted
// are found.
const grantLabel = "orlop.dev/addon-rights"

// remover is the account that takes away what an add-on no longer wants. An add-on's name has no
// dot, so no add-on is called so.
func remover(addon string) string { return addon + ".remover" }

// Grant is a role, and its binding to one identity. Without rules it is a role of Kubernetes that
// is bound.
type Grant struct {
	Name      string // of the binding, and of the role that has the rules
	Namespace string // empty: the whole cluster
	Role      string // of Kubernetes, a ClusterRole; empty: the rules
	Rules     []rbacv1.PolicyRule
	Subject   rbacv1.Subject
}

// home is what this package's own identity may do in Namespace: keep records and the manifests
// before, and act as the accounts there.
func home() Grant {
	return Grant{
		Name: "orlop:addons", Namespace: Namespace,
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "create", "update", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "update", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, Verbs: []string{"impersonate"}},
		},
		Subject: rbacv1.Subject{APIGroup: rbacGroup, Kind: rbacv1.UserKind, Name: nodespec.AddonsUser},
	}
}

func account(name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: Namespace}
}

// Rights are what an add-on's document states.
func Rights(a nodespec.Addon) []Grant {
	name := "orlop:addon:" + a.Name
	places := a.Namespaces
	if len(places) == 0 {
		places = []string{""}
	}
	var rules []rbacv1.PolicyRule
	for _, r := range a.Rights.Rules {
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames, NonResourceURLs: r.NonResourceURLs, Verbs: r.Verbs,
		})
	}
	var all []Grant
	for _, namespace := range places {
		if len(rules) > 0 {
			all = append(all, Grant{Name: name, Namespace: namespace, Rules: rules, Subject: account(a.Name)})
		}
		if a.Rights.NamespaceAdmin && namespace != "" {
			all = append(all, Grant{Name: name + ":admin", Namespace: namespace, Role: "admin", Subject: account(a.Name)})
		}
	}
	if a.Rights.ClusterAdmin && len(a.Namespaces) == 0 {
		all = append(all, Grant{Name: name + ":cluster-admin", Role: "cluster-admin", Subject: account(a.Name)})
	}
	return all
}

// Removing are the rights to look at and delete certain items, and nothing else. Before a
// definition goes, it is looked whether there are resources of it.
func Removing(addon string, items []Item) []Grant {
	type place struct{ namespace, group, resource string }
	names := map[place][]string{}
	var listed []rbacv1.PolicyRule
	for _, i := range items {
		at := place{i.Namespace, i.Group, i.Resource}
		names[at] = append(names[at], i.Name)
		if isCRD(i.gvk().GroupKind()) {
			plural, group := definitionOf(i.Name)
			listed = append(listed, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{plural}, Verbs: []string{"list"}})
		}
	}
	rules := map[string][]rbacv1.PolicyRule{}
	places := slices.SortedFunc(maps.Keys(names), func(x, y place) int {
		return cmp.Or(cmp.Compare(x.group, y.group), cmp.Compare(x.resource, y.resource))
	})
	for _, at := range places {
		slices.Sort(names[at])
		rules[at.namespace] = append(rules[at.namespace], rbacv1.PolicyRule{
			APIGroups: []string{at.group}, Resources: []string{at.resource}, ResourceNames: slices.Compact(names[at]), Verbs: []string{"get", "delete"},
		})
	}
	if len(listed) > 0 {
		rules[""] = append(rules[""], listed...)
	}
	var all []Grant
	for _, namespace := range slices.Sorted(maps.Keys(rules)) {
		all = append(all, Grant{Name: "orlop:addon:" + remover(addon), Namespace: namespace, Rules: rules[namespace], Subject: account(remover(addon))})
	}
	return all
}

// definitionOf is the plural and the group that are the name of a custom resource definition.
func definitionOf(name string) (plural, group string) {
	plural, group, _ = strings.Cut(name, ".")
	return plural, group
}

// granted are roles and bindings, those of the cluster with an empty namespace.
type granted struct {
	roles    map[[2]string][]rbacv1.PolicyRule // by namespace and name
	bindings map[[2]string]bound
}

type bound struct {
	role     rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// granting is what has to be there for some grants.
func granting(all []Grant) granted {
	g := granted{map[[2]string][]rbacv1.PolicyRule{}, map[[2]string]bound{}}
	for _, grant := range all {
		at := [2]string{grant.Namespace, grant.Name}
		ref := rbacv1.RoleRef{APIGroup: rbacGroup, Kind: "ClusterRole", Name: grant.Role}
		if grant.Role == "" {
			g.roles[at] = grant.Rules
			ref.Name = grant.Name
			if grant.Namespace != "" {
				ref.Kind = "Role"
			}
		}
		g.bindings[at] = bound{ref, []rbacv1.Subject{grant.Subject}}
	}
	return g
}

// difference is what turns some grants into others. Bindings go before the roles that they bind,
// and come after them. A binding that binds another role than is wanted goes and comes again,
// because its role cannot be changed.
type difference struct {
	unbind, drop      [][2]string // bindings and roles that go
	add, change, bind [][2]string // roles that come or change, bindings that come
	resubject         [][2]string // bindings whose subjects change
}

func compare(have, want granted) difference {
	var d difference
	for at, b := range have.bindings {
		if w, wanted := want.bindings[at]; !wanted || w.role != b.role {
			d.unbind = append(d.unbind, at)
		} else if !equality.Semantic.DeepEqual(w.subjects, b.subjects) {
			d.resubject = append(d.resubject, at)
		}
	}
	for at, rules := range have.roles {
		if w, wanted := want.roles[at]; !wanted {
			d.drop = append(d.drop, at)
		} else if !equality.Semantic.DeepEqual(w, rules) {
			d.change = append(d.change, at)
		}
	}
	for at := range want.roles {
		if _, there := have.roles[at]; !there {
			d.add = append(d.add, at)
		}
	}
	for at, w := range want.bindings {
		if b, there := have.bindings[at]; !there || b.role != w.role {
			d.bind = append(d.bind, at)
		}
	}
	for _, list := range []*[][2]string{&d.unbind, &d.drop, &d.add, &d.change, &d.bind, &d.resubject} {
		slices.SortFunc(*list, func(x, y [2]string) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) })
	}
	return d
}

// metadata is that of a role or binding.
func metadata(at [2]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: at[0], Name: at[1], Labels: map[string]string{grantLabel: "true"}}
}
