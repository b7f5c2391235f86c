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

// Namespace holds the records, and the service accounts as which add-ons act. No other service
// account belongs there.
const Namespace = nodespec.AddonsNamespace

// grantLabel is on every role and binding of this package, so that roles and bindings that are no
// longer wanted are found.
const grantLabel = "orlop.dev/addon-rights"

// remover returns the service account that prunes the objects of an add-on. The name of an add-on
// has no dot, so no add-on has this name.
func remover(addon string) string { return addon + ".remover" }

// Grant is a role and its binding to one identity. Without rules it binds a role of Kubernetes.
type Grant struct {
	Name      string // of the binding, and of the role with the rules
	Namespace string // empty: the whole cluster
	Role      string // a ClusterRole of Kubernetes; empty: the rules
	Rules     []rbacv1.PolicyRule
	Subject   rbacv1.Subject
}

// ownGrant is the grant of this package's own identity in Namespace: to store records and previous
// manifests, and to impersonate the service accounts there.
func ownGrant() Grant {
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

// Rights returns the grants that an add-on's document states.
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

// Removing returns the rights to read and delete certain items. For a custom resource definition
// among them, it adds the right to list its resources, because a definition with resources is not
// deleted.
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

// definitionOf returns the plural and the group of which the name of a custom resource definition
// consists.
func definitionOf(name string) (plural, group string) {
	plural, group, _ = strings.Cut(name, ".")
	return plural, group
}

// rbacObjects are roles and bindings; cluster-scoped objects have an empty namespace.
type rbacObjects struct {
	roles    map[[2]string][]rbacv1.PolicyRule // by namespace and name
	bindings map[[2]string]boundRole
}

type boundRole struct {
	role     rbacv1.RoleRef
	subjects []rbacv1.Subject
}

// rbacFor returns the roles and bindings for some grants.
func rbacFor(all []Grant) rbacObjects {
	g := rbacObjects{map[[2]string][]rbacv1.PolicyRule{}, map[[2]string]boundRole{}}
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
		g.bindings[at] = boundRole{ref, []rbacv1.Subject{grant.Subject}}
	}
	return g
}

// difference lists the operations that turn one set of roles and bindings into another. Bindings
// are deleted before their roles, and created after them. The role of a binding cannot be changed,
// so a binding to another role is deleted and created again.
type difference struct {
	unbind, drop      [][2]string // bindings and roles to delete
	add, change, bind [][2]string // roles to create or change, bindings to create
	resubject         [][2]string // bindings with other subjects
}

func compare(have, want rbacObjects) difference {
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

// metadata returns the metadata of a role or binding.
func metadata(at [2]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: at[0], Name: at[1], Labels: map[string]string{grantLabel: "true"}}
}
