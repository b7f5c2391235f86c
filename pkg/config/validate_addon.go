package config

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxAddons is the maximum number of add-ons. The number is limited because the API server holds
// the identity and the permissions of each add-on in memory.
const maxAddons = 64

// addonValidator checks the Addon documents.
type addonValidator struct {
	checks
	cfg *Config
}

// addons validates each add-on, and checks that no object is in two manifests.
func (v addonValidator) addons() {
	owners := map[manifestObject]string{}
	for i, a := range v.cfg.Addons {
		path := addonPath(a.Metadata.Name)
		switch {
		case i == maxAddons:
			v.on(path, wrong{reason: fmt.Sprintf("one of %d add-ons", len(v.cfg.Addons)), expected: fmt.Sprintf("at most %d", maxAddons)})
		case v.cfg.Cluster == nil && !v.broken["kind"]:
			v.on(path, wrong{reason: "there is no Cluster document", expected: "an add-on on a machine of a cluster"})
		case v.cfg.Machine.Spec.Role == RoleWorker:
			v.on(path, wrong{reason: "the machine is a worker", expected: "an add-on on control-plane machines only", hint: "remove it here"})
		}
		if err := dnsLabel(a.Metadata.Name); err != nil && a.Metadata.Name != "" {
			v.on(path+".metadata.name", wrong{reason: fmt.Sprintf("%s %v", quote(a.Metadata.Name), err), expected: "a DNS label"})
		}
		v.limits(path, reflect.ValueOf(a))
		v.addonScope(path+".spec", &a.Spec)
		v.addonRights(path+".spec.rights", &a.Spec)
		v.addonSource(path+".spec", &a.Spec)
		var outside []string
		for j, m := range a.Spec.Manifests {
			at := fmt.Sprintf("%s.spec.manifests[%d]", path, j)
			objects, err := manifestObjects(m.Reveal())
			if err != nil {
				v.on(at, wrong{reason: err.Error(), expected: "objects of Kubernetes, each with apiVersion, kind and metadata.name"})
			}
			for _, o := range objects {
				if why := a.Spec.Scope.outside(o); why != "" {
					outside = append(outside, o.String()+" "+why)
				}
				o = o.withNamespace(a.Spec.DefaultNamespace())
				if owner, twice := owners[o]; twice {
					v.on(at, wrong{reason: fmt.Sprintf("%s is also in %s", o, owner), expected: "each object once"})
				}
				owners[o] = at
			}
		}
		if len(outside) > 0 {
			v.on(path+".spec.manifests", wrong{reason: "outside the scope: " + joinTen(outside), expected: "objects in the namespaces of scope.namespaces",
				hint: "add the namespaces, or set cluster: true"})
		}
	}
}

// maxRegistries is the maximum number of registries of an add-on. It is low because each
// unreachable registry delays the fetch by its timeout.
const maxRegistries = 8

// addonSource validates the sources from which an add-on gets its objects: manifests, or an
// artifact with its registries.
func (v addonValidator) addonSource(path string, s *AddonSpec) {
	if len(s.Manifests) == 0 && s.Artifact == (Artifact{}) && !v.broken[path+".artifact"] {
		v.on(path+".manifests", wrong{reason: "is empty, and there is no artifact", expected: "at least one text, or an artifact"})
	}
	if len(s.Registries) > 0 && s.Artifact == (Artifact{}) && !v.broken[path+".artifact"] {
		v.on(path+".registries", wrong{reason: "there is no artifact to fetch", expected: "artifact"})
	}
	if len(s.Registries) > maxRegistries {
		v.on(path+".registries", wrong{reason: fmt.Sprintf("%d registries", len(s.Registries)), expected: fmt.Sprintf("at most %d", maxRegistries)})
	}
	for i, r := range s.Registries {
		at := fmt.Sprintf("%s.registries[%d]", path, i)
		if slices.ContainsFunc(s.Registries[:i], func(o AddonRegistry) bool { return o.Address == r.Address }) && r.Address != "" {
			v.on(at+".address", wrong{reason: quote(string(r.Address)) + " is given twice", expected: "each once"})
		}
		v.bundle(at+".ca", r.CA)
		if r.CA.IsZero() && v.cfg.Machine.Spec.Egress.CA.IsZero() && !r.PlainHTTP && !v.broken[at+".ca"] {
			v.on(at, wrong{reason: "has no ca, and public CAs are not trusted here", expected: "the CA of the registry's certificate, Machine.spec.egress.ca, or plainHTTP: true"})
			continue
		}
		v.registryAccess(at, r.CA, r.PlainHTTP, r.Username, r.Password)
	}
}

// joinTen joins texts on one line. It shows at most ten texts, and the number of the others.
func joinTen(texts []string) string {
	const most = 10
	if more := len(texts) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), more)
	}
	return strings.Join(texts, ", ")
}

func (v addonValidator) addonScope(path string, s *AddonSpec) {
	switch spaces := s.Scope.Namespaces; {
	case s.Scope.Cluster && len(spaces) > 0:
		v.on(path+".scope", wrong{reason: "has both namespaces and cluster: true", expected: "one of them"})
	case !s.Scope.Cluster && len(spaces) == 0:
		v.on(path+".scope", wrong{reason: "is empty", expected: "namespaces, or cluster: true"})
	case s.Namespace != "" && len(spaces) > 0 && !slices.Contains(spaces, s.Namespace):
		v.on(path+".namespace", wrong{reason: fmt.Sprintf("%s is not in scope.namespaces", quote(s.Namespace)), expected: oneOf(spaces)})
	}
	for i, name := range s.Scope.Namespaces {
		at := fmt.Sprintf("%s.scope.namespaces[%d]", path, i)
		v.namespace(at, name)
		if slices.Contains(s.Scope.Namespaces[:i], name) {
			v.on(at, wrong{reason: quote(name) + " is given twice", expected: "each once"})
		}
	}
	if s.Namespace != "" {
		v.namespace(path+".namespace", s.Namespace)
	}
}

// AddonNamespace is the namespace in which the control plane stores the state of add-ons. No add-on
// can have objects in it.
const AddonNamespace = "orlop-addons"

func (v addonValidator) namespace(path, name string) {
	if err := dnsLabel(name); err != nil {
		v.on(path, wrong{reason: fmt.Sprintf("%s %v", quote(name), err), expected: "a DNS label"})
	} else if name == AddonNamespace {
		v.on(path, wrong{reason: fmt.Sprintf("%s contains the system's state of add-ons", quote(name)), expected: "another namespace"})
	}
}

func (v addonValidator) addonRights(path string, s *AddonSpec) {
	r := s.Rights
	switch {
	case r.ClusterAdmin && (r.NamespaceAdmin || len(r.Rules) > 0):
		v.on(path, wrong{reason: "clusterAdmin: true includes all other permissions", expected: "clusterAdmin alone"})
	case r.ClusterAdmin && !s.Scope.Cluster:
		v.on(path+".clusterAdmin", wrong{reason: "is not limited to scope.namespaces", expected: "scope: {cluster: true}"})
	case r.NamespaceAdmin && s.Scope.Cluster:
		v.on(path+".namespaceAdmin", wrong{reason: "requires scope.namespaces, which is empty", expected: "rules, or clusterAdmin: true"})
	case !r.ClusterAdmin && !r.NamespaceAdmin && len(r.Rules) == 0:
		v.on(path, wrong{reason: "is empty", expected: "rules, namespaceAdmin: true or clusterAdmin: true", hint: "without permissions no object can be applied"})
	}
	all := []string{"*"}
	for i, rule := range r.Rules {
		at := fmt.Sprintf("%s.rules[%d]", path, i)
		urls := len(rule.NonResourceURLs) > 0
		switch {
		case len(rule.Verbs) == 0:
			v.on(at+".verbs", wrong{reason: "is empty", expected: "at least one verb"})
		case urls && len(rule.APIGroups)+len(rule.Resources)+len(rule.ResourceNames) > 0:
			v.on(at, wrong{reason: "has both resources and nonResourceURLs", expected: "separate rules"})
		case urls && !s.Scope.Cluster:
			v.on(at+".nonResourceURLs", wrong{reason: "is not namespaced", expected: "scope: {cluster: true}"})
		case !urls && (len(rule.APIGroups) == 0 || len(rule.Resources) == 0):
			v.on(at, wrong{reason: "names no resources", expected: "apiGroups and resources, or nonResourceURLs"})
		case slices.Equal(rule.Verbs, all) && len(rule.APIGroups) == 1 && rule.APIGroups[0].String() == "*" && slices.Equal(rule.Resources, all) && len(rule.ResourceNames) == 0:
			v.on(at, wrong{reason: "grants all permissions", expected: "namespaceAdmin: true or clusterAdmin: true, which is explicit"})
		}
	}
}

// manifestObject identifies an object. It omits the API version, because the same object can be
// read in each version of its group.
type manifestObject struct{ group, kind, namespace, name string }

// String returns, for example, "Deployment web/frontend" or "ClusterRole reader".
func (o manifestObject) String() string {
	if o.namespace == "" {
		return o.kind + " " + o.name
	}
	return o.kind + " " + o.namespace + "/" + o.name
}

// withNamespace returns the object with the given namespace, if the object names none and is not
// cluster-scoped.
func (o manifestObject) withNamespace(namespace string) manifestObject {
	if o.namespace == "" && !slices.Contains(clusterKinds[o.group], o.kind) {
		o.namespace = namespace
	}
	return o
}

// clusterKinds are the cluster-scoped kinds of Kubernetes, by group. Kinds of custom resources are
// missing, because only the cluster knows their scope.
var clusterKinds = map[string][]string{
	"":                             {"Namespace", "Node", "PersistentVolume"},
	"admissionregistration.k8s.io": {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"},
	"apiextensions.k8s.io":         {"CustomResourceDefinition"},
	"apiregistration.k8s.io":       {"APIService"},
	"certificates.k8s.io":          {"CertificateSigningRequest", "ClusterTrustBundle"},
	"flowcontrol.apiserver.k8s.io": {"FlowSchema", "PriorityLevelConfiguration"},
	"networking.k8s.io":            {"IngressClass", "IPAddress", "ServiceCIDR"},
	"node.k8s.io":                  {"RuntimeClass"},
	"rbac.authorization.k8s.io":    {"ClusterRole", "ClusterRoleBinding"},
	"resource.k8s.io":              {"DeviceClass", "DeviceTaintRule", "ResourceSlice"},
	"scheduling.k8s.io":            {"PriorityClass"},
	"storage.k8s.io":               {"CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"},
	"storagemigration.k8s.io":      {"StorageVersionMigration"},
}

// outside returns the reason why an object is outside the scope. It returns "" if the object is
// inside the scope, or if only the cluster can decide this.
func (s AddonScope) outside(o manifestObject) string {
	switch {
	case o.namespace == AddonNamespace || o.group == "" && o.kind == "Namespace" && o.name == AddonNamespace:
		return "(the system's own)"
	case s.Cluster || len(s.Namespaces) == 0:
		return ""
	case slices.Contains(clusterKinds[o.group], o.kind):
		return "(of the whole cluster)"
	case o.namespace != "" && !slices.Contains(s.Namespaces, o.namespace):
		return "(another namespace)"
	}
	return ""
}

// manifestObjects parses the identities of the objects in a text of YAML documents. Its errors
// contain no values of other fields, because the objects can be Secrets.
func manifestObjects(text string) ([]manifestObject, error) {
	decoder := yaml.NewDecoder(strings.NewReader(text))
	var all []manifestObject
	for {
		doc, err := nextDocument(decoder)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			line, reason := syntaxError(err)
			return nil, fmt.Errorf("line %d of it cannot be read as YAML: %s", line, reason)
		}
		root := doc.Content[0]
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			continue
		}
		if key := duplicateKey(root); key != nil {
			return nil, fmt.Errorf("line %d of it has a field that occurs twice in its mapping", key.Line)
		}
		if all, err = appendObjects(all, root); err != nil {
			return nil, err
		}
	}
}

// duplicateKey returns the first key that occurs twice in a mapping at or below a node; nil if
// there is none.
func duplicateKey(n *yaml.Node) *yaml.Node {
	seen := map[string]bool{}
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && child.Kind == yaml.ScalarNode {
			if seen[child.Value] {
				return child
			}
			seen[child.Value] = true
		}
		if key := duplicateKey(child); key != nil {
			return key
		}
	}
	return nil
}

// appendObjects adds the object of a document, or the items of a List.
func appendObjects(all []manifestObject, root *yaml.Node) ([]manifestObject, error) {
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d of it is %s", root.Line, describe(root))
	}
	version, kind := textOf(root, "apiVersion"), textOf(root, "kind")
	if items := lookup(root, "items"); strings.HasSuffix(kind, "List") && items != nil && items.Kind == yaml.SequenceNode {
		var err error
		for _, item := range items.Content {
			if all, err = appendObjects(all, item); err != nil {
				return nil, err
			}
		}
		return all, nil
	}
	o := manifestObject{kind: kind, name: documentName(root)}
	if group, _, grouped := strings.Cut(version, "/"); grouped {
		o.group = group
	}
	if metadata := lookup(root, "metadata"); metadata != nil {
		o.namespace = textOf(metadata, "namespace")
	}
	for _, field := range []struct{ name, text string }{{"apiVersion", version}, {"kind", kind}, {"metadata.name", o.name}} {
		if field.text == "" {
			return nil, fmt.Errorf("the object in line %d of it has no %s", root.Line, field.name)
		}
	}
	return append(all, o), nil
}

// textOf returns the value of a scalar field of a mapping; "" for another kind of value.
func textOf(n *yaml.Node, field string) string {
	if v := lookup(n, field); v != nil && v.Kind == yaml.ScalarNode && v.Tag != "!!null" {
		return v.Value
	}
	return ""
}
