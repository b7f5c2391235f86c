package addons

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/artifact"
	"github.com/orlop-os/orlop/pkg/nodespec"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Label names the add-on to which an object belongs.
const Label = "orlop.dev/addon"

// digestAnnotation, on the object of a hook, is the digest of the manifests for which it runs.
const digestAnnotation = "orlop.dev/addon-digest"

// The supported annotations of Helm charts (Helm's documentation, "Chart Hooks" and "Chart
// Development Tips and Tricks").
const (
	helmHook   = "helm.sh/hook"
	helmWeight = "helm.sh/hook-weight"
	helmPolicy = "helm.sh/resource-policy"
)

// Item identifies an object in the cluster.
type Item struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Resource  string `json:"resource"`            // as in paths, such as deployments
	Namespace string `json:"namespace,omitempty"` // empty for a cluster-scoped object
	Name      string `json:"name"`
}

// key identifies an object in all versions of its kind.
type key struct{ group, kind, namespace, name string }

func (i Item) key() key { return key{i.Group, i.Kind, i.Namespace, i.Name} }

// gvr returns the resource for clients.
func (i Item) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: i.Group, Version: i.Version, Resource: i.Resource}
}

// String returns, for example, "Deployment web/frontend".
func (i Item) String() string {
	if i.Namespace == "" {
		return i.Kind + " " + i.Name
	}
	return i.Kind + " " + i.Namespace + "/" + i.Name
}

// Object is an object of an add-on's manifests.
type Object struct {
	Item
	Body   *unstructured.Unstructured
	Hook   hook
	Digest string // of Body
}

// hook is the phase in which an object of a Helm chart is applied. The zero value is not a hook.
type hook struct {
	events []string // pre-install, post-upgrade, …
	weight int
}

// Kind is the API server's description of a kind.
type Kind struct {
	Resource   string
	Namespaced bool
}

// Wanted is the content of an add-on's documents.
type Wanted struct {
	Objects []Object
	Digest  string   // of all manifests, and the default namespace of objects
	Refused []string // reasons why no object is applied
	Unknown []string // objects that wait until the API server knows their kind
	Notes   []string // objects that are left out on purpose
}

// maxObjects is the largest number of objects of an add-on. It is limited, so that the record of
// the add-on fits into a ConfigMap. An entry of the record takes at most 831 bytes: 253 each for a
// name and a group, 63 each for a version, a kind, a resource and a namespace, 73 for JSON. 1000
// entries are 812 KiB, and a record can have 832 KiB (maxRecord). Usual entries take a quarter of
// 831 bytes, so a record with the old and the new objects of an upgrade fits, too. A record that
// does not fit is reported before any object is created (Record.maxSize). The limit also bounds the
// requests of a pass, because a pass reads all objects, with a client that sends 50 requests a
// second.
const maxObjects = 1000

// Read returns the wanted objects of an add-on. files are the files of its artifact. The function
// kinds looks up a kind of the API server; it need not know the kinds that the add-on itself
// defines.
func Read(a nodespec.Addon, files []artifact.Text, kinds func(schema.GroupVersionKind) (Kind, bool)) Wanted {
	var w Wanted
	var bodies []*unstructured.Unstructured
	sum := sha256.New()
	read := func(name, text string) {
		fmt.Fprintf(sum, "%d %s", len(text), text)
		parsed, err := parse(text)
		if err != nil {
			w.Refused = append(w.Refused, fmt.Sprintf("%s: %v", name, err))
		}
		bodies = append(bodies, parsed...)
	}
	for i, text := range a.Manifests {
		read(fmt.Sprintf("manifests[%d]", i), text)
	}
	for _, f := range files {
		read("artifact: "+f.Name, f.Content)
	}
	fmt.Fprintf(sum, " in %s", a.Namespace) // in another namespace the objects differ
	w.Digest = fmt.Sprintf("%x", sum.Sum(nil))[:16]
	own := defined(bodies)
	var outside []string
	seen := map[key]bool{}
	for _, body := range bodies {
		gvk := body.GroupVersionKind()
		k, known := own[gvk.GroupKind()]
		if !known {
			k, known = kinds(gvk)
		}
		if !known {
			w.Unknown = append(w.Unknown, fmt.Sprintf("%s %s: the API server does not know %s in %s", gvk.Kind, body.GetName(), gvk.Kind, body.GetAPIVersion()))
			continue
		}
		if err := textsOnly(body); err != nil {
			w.Refused = append(w.Refused, fmt.Sprintf("%s %s: %v", gvk.Kind, body.GetName(), err))
			continue
		}
		o, note := object(a, body, k, w.Digest)
		if note != "" {
			w.Notes = append(w.Notes, note)
			continue
		}
		if why := outsideScope(a, o.Item, k); why != "" {
			outside = append(outside, o.String()+" "+why)
		}
		if seen[o.key()] {
			w.Refused = append(w.Refused, o.String()+": occurs twice")
		}
		seen[o.key()] = true
		w.Objects = append(w.Objects, o)
	}
	if count := len(w.Objects) + len(w.Unknown); count > maxObjects {
		w.Refused = append(w.Refused, fmt.Sprintf("has %d objects, more than the limit of %d; none is applied; divide it into several add-ons", count, maxObjects))
	}
	if len(outside) > 0 {
		w.Refused = append(w.Refused, "outside the scope: "+strings.Join(outside, ", "))
	}
	return w
}

// parse reads the objects of a text. The items of a list are separate objects.
func parse(text string) ([]*unstructured.Unstructured, error) {
	// YAMLReader also replaces \r\n. With the same replacement here, each document is a substring
	// of the text, so its first line number can be computed.
	text = strings.ReplaceAll(text, "\r\n", "\n")
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	var all []*unstructured.Unstructured
	end := 0 // offset of the end of the last document in the text
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read: %w", err)
		}
		start := end + max(strings.Index(text[end:], strings.TrimSuffix(string(document), "\n")), 0)
		end = min(start+len(document), len(text))
		contents, err := values(document, strings.Count(text[:start], "\n"))
		if err != nil {
			return nil, err
		}
		for _, content := range contents {
			items, err := parseOne(content)
			if err != nil {
				return nil, err
			}
			all = append(all, items...)
		}
	}
}

// values returns the JSON of a document: a YAML value, or several concatenated JSON values, as
// kubectl reads them. before is the number of lines before the document in its text. A field that
// occurs twice is an error, because its first value would be lost.
func values(document []byte, before int) (all [][]byte, err error) {
	if stream := json.NewDecoder(bytes.NewReader(document)); bytes.HasPrefix(bytes.TrimSpace(document), []byte("{")) {
		for {
			var one json.RawMessage
			err := stream.Decode(&one)
			if errors.Is(err, io.EOF) {
				return all, nil
			}
			if err != nil {
				break // YAML may begin like this, too
			}
			var object any
			if twice, err := kjson.UnmarshalStrict(one, &object); err == nil && len(twice) > 0 {
				return nil, fmt.Errorf("the JSON value that ends in line %d: %w", before+1+bytes.Count(document[:stream.InputOffset()], []byte("\n")), errors.Join(twice...))
			}
			all = append(all, one)
		}
	}
	content, err := yaml.YAMLToJSON(document)
	if err != nil {
		// The message of the library may show a Secret.
		return nil, errors.New("a document is not valid YAML")
	}
	decoder := goyaml.NewDecoder(bytes.NewReader(document))
	var node, ignored goyaml.Node
	if err := decoder.Decode(&node); err == nil {
		if line := strictyaml.Repeated(&node); line > 0 {
			return nil, fmt.Errorf("line %d has a field that occurs twice in its mapping", before+line)
		}
		err = decoder.Decode(&ignored)
		if !errors.Is(err, io.EOF) {
			return nil, errors.New("a document has content after its end; separate objects by a line of ---")
		}
	}
	line, merges := lateMerge(&node)
	if line > 0 {
		return nil, fmt.Errorf("line %d has a merge key (<<) after a field that it replaces; write the merge key first", before+line)
	}
	// The strict decoder also rejects a field that overrides a merged field. Such a field loses no
	// value, so the error of the decoder is ignored for a document with merge keys.
	if _, err := yaml.YAMLToJSONStrict(document); err != nil && !merges {
		return nil, fmt.Errorf("the document that begins in line %d has a field that occurs twice", before+1)
	}
	return [][]byte{content}, nil
}

// lateMerge searches the mappings below a node for a merge key (<<) that replaces an earlier field
// of its mapping. line is the line of the first of these keys, or 0; merges reports whether any
// merge key exists.
func lateMerge(n *goyaml.Node) (line int, merges bool) {
	earlier := map[string]bool{}
	for i, child := range n.Content {
		switch {
		case n.Kind != goyaml.MappingNode || i%2 > 0:
		case child.Tag == "!!merge":
			merges = true
			merged := map[string]bool{}
			fieldNames(n.Content[i+1], merged, map[*goyaml.Node]bool{})
			for name := range merged {
				if earlier[name] {
					return child.Line, true
				}
			}
		default:
			earlier[child.Value] = true
		}
		below, more := lateMerge(child)
		if merges = merges || more; below > 0 {
			return below, true
		}
	}
	return 0, merges
}

// fieldNames adds the names of the fields of a merged value: a mapping, an alias, or a sequence of
// both. seen holds the nodes that were visited.
func fieldNames(n *goyaml.Node, names map[string]bool, seen map[*goyaml.Node]bool) {
	if n == nil || seen[n] {
		return
	}
	seen[n] = true
	switch n.Kind {
	case goyaml.AliasNode:
		fieldNames(n.Alias, names, seen)
	case goyaml.SequenceNode:
		for _, child := range n.Content {
			fieldNames(child, names, seen)
		}
	case goyaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Tag == "!!merge" {
				fieldNames(n.Content[i+1], names, seen)
			} else {
				names[n.Content[i].Value] = true
			}
		}
	}
}

// parseOne reads the objects of a value; null has none.
func parseOne(content []byte) ([]*unstructured.Unstructured, error) {
	if bytes.Equal(bytes.TrimSpace(content), []byte("null")) {
		return nil, nil
	}
	var fields map[string]any
	if err := yaml.Unmarshal(content, &fields); err != nil {
		return nil, errors.New("a document is not a mapping")
	}
	// UnmarshalJSON decodes integers as int64, the form in unstructured objects; yaml.Unmarshal
	// decodes them as float64.
	decoded := &unstructured.Unstructured{}
	if err := decoded.UnmarshalJSON(content); err != nil {
		return nil, fmt.Errorf("%v %v: has no kind or is not an object", fields["apiVersion"], fields["kind"])
	}
	return flatten(decoded)
}

// flatten returns the object itself, or the items of a list.
func flatten(o *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	if !o.IsList() || !strings.HasSuffix(o.GetKind(), "List") {
		if o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "" {
			return nil, fmt.Errorf("%s %s: has no apiVersion, kind or metadata.name", o.GetKind(), o.GetName())
		}
		return []*unstructured.Unstructured{o}, nil
	}
	items, _, err := unstructured.NestedSlice(o.Object, "items")
	if err != nil {
		return nil, fmt.Errorf("%s: has no items", o.GetKind())
	}
	var all []*unstructured.Unstructured
	for _, item := range items {
		fields, ok := item.(map[string]any)
		if !ok {
			return nil, fmt.Errorf("%s: an item is not an object", o.GetKind())
		}
		inner, err := flatten(&unstructured.Unstructured{Object: fields})
		if err != nil {
			return nil, err
		}
		all = append(all, inner...)
	}
	return all, nil
}

// defined returns the kinds of an add-on's own custom resource definitions.
func defined(bodies []*unstructured.Unstructured) map[schema.GroupKind]Kind {
	own := map[schema.GroupKind]Kind{}
	for _, b := range bodies {
		if !isCRD(b.GroupVersionKind().GroupKind()) {
			continue
		}
		text := func(fields ...string) string { s, _, _ := unstructured.NestedString(b.Object, fields...); return s }
		own[schema.GroupKind{Group: text("spec", "group"), Kind: text("spec", "names", "kind")}] = Kind{
			Resource: text("spec", "names", "plural"), Namespaced: text("spec", "scope") != string(apiextensionsv1.ClusterScoped),
		}
	}
	return own
}

func isCRD(gk schema.GroupKind) bool {
	return gk.Group == apiextensionsv1.GroupName && gk.Kind == "CustomResourceDefinition"
}

// textsOnly returns an error if a label or annotation is not a string, such as 1.30 without quotes.
// The API server would reject the object. Without this check, a single wrong value would make this
// package read all labels or annotations of the object as empty.
func textsOnly(body *unstructured.Unstructured) error {
	for _, field := range []string{"labels", "annotations"} {
		if _, _, err := unstructured.NestedNullCoercingStringMap(body.Object, "metadata", field); err != nil {
			return fmt.Errorf("metadata.%s has a value that is not a string; put it in quotes: %w", field, err)
		}
	}
	return nil
}

// object converts a body to the object to apply, or returns a note why it is not applied.
func object(a nodespec.Addon, body *unstructured.Unstructured, k Kind, digest string) (Object, string) {
	body = body.DeepCopy()
	gvk := body.GroupVersionKind()
	if !k.Namespaced {
		body.SetNamespace("")
	} else if body.GetNamespace() == "" {
		body.SetNamespace(a.Namespace)
	}
	o := Object{Item: Item{gvk.Group, gvk.Version, gvk.Kind, k.Resource, body.GetNamespace(), body.GetName()}, Body: body}
	annotations := body.GetAnnotations()
	for event := range strings.SplitSeq(annotations[helmHook], ",") {
		switch event = strings.TrimSpace(event); event {
		case "pre-install", "pre-upgrade", "post-install", "post-upgrade":
			o.Hook.events = append(o.Hook.events, event)
		case "", "crd-install":
		default:
			// These events are not supported: pre-delete, post-delete, pre-rollback,
			// post-rollback, test, test-success, test-failure.
		}
	}
	if named := annotations[helmHook]; named != "" && named != "crd-install" {
		if len(o.Hook.events) == 0 {
			return o, fmt.Sprintf("%s: hooks for %s are not supported", o, named)
		}
		// A text that is no number counts as 0, as in Helm.
		o.Hook.weight, _ = strconv.Atoi(annotations[helmWeight])
		annotations[digestAnnotation] = digest
		body.SetAnnotations(annotations)
	}
	labels := body.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[Label] = a.Name
	body.SetLabels(labels)
	delete(body.Object, "status")
	content, err := body.MarshalJSON()
	if err != nil {
		return o, fmt.Sprintf("%s: cannot encode: %v", o, err)
	}
	o.Digest = fmt.Sprintf("%x", sha256.Sum256(content))
	return o, ""
}

// outsideScope returns the reason why an add-on may not contain an object, or the empty string.
func outsideScope(a nodespec.Addon, i Item, k Kind) string {
	reserved := strings.HasPrefix(i.Name, "system:") || strings.HasPrefix(i.Name, "orlop:")
	switch {
	case i.Namespace == Namespace, i.Group == "" && i.Kind == "Namespace" && i.Name == Namespace, i.Group == rbacGroup && reserved:
		return "(reserved for the system)"
	case len(a.Namespaces) == 0:
		return ""
	case !k.Namespaced:
		return "(cluster-scoped)"
	case !slices.Contains(a.Namespaces, i.Namespace):
		return "(another namespace)"
	}
	return ""
}

// gvk returns the kind for clients.
func (i Item) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: i.Group, Version: i.Version, Kind: i.Kind}
}

// isCustom reports whether a kind does not belong to Kubernetes itself.
func isCustom(i Item) bool {
	return strings.Contains(i.Group, ".") && !builtin[i.Group]
}

// builtin are the API groups of Kubernetes itself that have a dot in their name. Other projects use
// *.k8s.io, too, so the suffix does not identify Kubernetes.
var builtin = map[string]bool{
	"admissionregistration.k8s.io": true, "apiextensions.k8s.io": true, "apiregistration.k8s.io": true, "authentication.k8s.io": true,
	"authorization.k8s.io": true, "certificates.k8s.io": true, "coordination.k8s.io": true, "discovery.k8s.io": true, "events.k8s.io": true,
	"flowcontrol.apiserver.k8s.io": true, "lifecycle.k8s.io": true, "networking.k8s.io": true, "node.k8s.io": true, rbacGroup: true, "resource.k8s.io": true,
	"scheduling.k8s.io": true, "storage.k8s.io": true, "storagemigration.k8s.io": true,
}
