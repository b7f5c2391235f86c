package clusterfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	goyaml "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"

	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/strictyaml"
)

// Kind is the kind of the document in the file.
const Kind = "ClusterExport"

// File is the description of a cluster.
type File struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Machines   []Machine `json:"machines"`
	// Cluster is the Cluster document, without keys and CAs.
	Cluster Document `json:"cluster"`
	// Addons are the Addon documents, sorted by name.
	Addons []Document `json:"addons,omitempty"`
}

// Machine is a machine of the cluster.
type Machine struct {
	Name string `json:"name"`
	Role string `json:"role"` // "controlplane" or "worker"
	// Address is the IP address by which other machines reach this machine. In the documents,
	// ${NAME} with the name of the machine stands for its address.
	Address string `json:"address"`
	// Endpoint is the address by which the tool calls the machine. If it is empty, the tool calls
	// Address.
	Endpoint string `json:"endpoint,omitempty"`
	// Fingerprint is the fingerprint of the machine's key, which the console shows. Only `cluster
	// create` needs it.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Machine and Network are the specs of the documents Machine and Network, without fields with
	// their default value, the role and the ticket.
	Machine map[string]any `json:"machine,omitempty"`
	Network map[string]any `json:"network,omitempty"`
	// Volumes are the Volume documents, sorted by name.
	Volumes []Document `json:"volumes,omitempty"`
}

// Document is a document of the configuration without its kind.
type Document struct {
	Metadata map[string]any `json:"metadata"`
	Spec     map[string]any `json:"spec"`
}

// Name returns the name of the document.
func (d Document) Name() string {
	name, _ := d.Metadata["name"].(string)
	return name
}

// generated are the fields of Cluster.spec that `cluster create` generates.
var generated = []string{"pki", "secretsEncryptionKey", "acceptedEncryptionKeys"}

// Exported is the configuration of a machine, as the machine returns it (RPC Config.Get).
type Exported struct {
	Name, Role, Address string
	Documents           []byte
}

// New returns the file of a cluster. It takes the Cluster document and the add-ons from the first
// machine, which must be a control-plane machine.
func New(machines []Exported) (*File, error) {
	f := &File{APIVersion: config.APIVersion, Kind: Kind}
	for i, m := range machines {
		documents, err := split(m.Documents)
		if err != nil {
			return nil, fmt.Errorf("machine %s: cannot read its configuration: %w", m.Name, err)
		}
		one := Machine{Name: m.Name, Role: m.Role, Address: m.Address}
		defaults, err := split(config.Marshal(config.New(m.Name, config.Role(m.Role))))
		if err != nil {
			return nil, err
		}
		one.Machine = without(specOf(documents, "Machine"), specOf(defaults, "Machine"))
		one.Network = without(specOf(documents, "Network"), specOf(defaults, "Network"))
		delete(one.Machine, "role")
		delete(one.Machine, "join")
		one.Volumes = named(documents, "Volume")
		f.Machines = append(f.Machines, one)
		if i > 0 {
			continue
		}
		for _, d := range documents {
			if d.kind == "Cluster" {
				f.Cluster = d.Document
				for _, field := range generated {
					delete(f.Cluster.Spec, field)
				}
			}
		}
		f.Addons = named(documents, "Addon")
	}
	if f.Cluster.Spec == nil {
		return nil, errors.New("cluster: cannot export: the machine has no Cluster document")
	}
	f.insertNames()
	return f, nil
}

// named returns all documents of a kind, sorted by name.
func named(documents []kinded, kind string) (all []Document) {
	for _, d := range documents {
		if d.kind == kind {
			all = append(all, d.Document)
		}
	}
	slices.SortFunc(all, func(a, b Document) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// kinded is a document with its kind.
type kinded struct {
	kind string
	Document
}

// split parses the documents of a configuration.
func split(text []byte) (all []kinded, err error) {
	decoder := goyaml.NewDecoder(bytes.NewReader(text))
	for {
		var content map[string]any
		if err := decoder.Decode(&content); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		d := kinded{}
		d.kind, _ = content["kind"].(string)
		d.Metadata, _ = content["metadata"].(map[string]any)
		d.Spec, _ = content["spec"].(map[string]any)
		all = append(all, d)
	}
}

// specOf returns the spec of the first document of a kind. It returns an empty map if there is
// none.
func specOf(documents []kinded, kind string) map[string]any {
	for _, d := range documents {
		if d.kind == kind && d.Spec != nil {
			return d.Spec
		}
	}
	return map[string]any{}
}

// The function without returns the fields of spec that differ from the defaults, also in nested
// fields.
func without(spec, defaults map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range spec {
		fields, block := value.(map[string]any)
		usual, isBlock := defaults[key].(map[string]any)
		switch {
		case block && isBlock:
			if rest := without(fields, usual); len(rest) > 0 {
				out[key] = rest
			}
		case !reflect.DeepEqual(value, defaults[key]):
			out[key] = value
		}
	}
	return out
}

// Parse parses a file. It checks the machines, but not the documents: File.Documents checks these.
func Parse(text []byte) (*File, error) {
	f := &File{}
	if err := strictyaml.Decode(text, f); err != nil {
		return nil, err
	}
	switch {
	case f.Kind != Kind:
		return nil, fmt.Errorf("kind: is %q, expected %s; `orlopctl cluster export` writes such a file", f.Kind, Kind)
	case f.APIVersion != config.APIVersion:
		return nil, fmt.Errorf("apiVersion: is %q, expected %s", f.APIVersion, config.APIVersion)
	case f.Cluster.Name() == "":
		return nil, errors.New("cluster.metadata.name: is missing, expected the name of the cluster")
	}
	for i, a := range f.Addons {
		if a.Name() == "" {
			return nil, fmt.Errorf("addons[%d].metadata.name: is missing, expected the name of the add-on", i)
		}
	}
	return f, f.checkMachines()
}

// checkMachines checks the list of machines: names, addresses, roles, and that there is a
// control-plane machine.
func (f *File) checkMachines() error {
	names, addresses, planes := map[string]bool{}, map[string]bool{}, 0
	for i, m := range f.Machines {
		at := fmt.Sprintf("machines[%d]", i)
		if _, err := netip.ParseAddr(m.Address); err != nil {
			return fmt.Errorf("%s.address: is %q, expected an IP address", at, m.Address)
		}
		for j, v := range m.Volumes {
			if v.Name() == "" {
				return fmt.Errorf("%s.volumes[%d].metadata.name: is missing, expected the name of the volume", at, j)
			}
		}
		switch {
		case m.Name == "":
			return fmt.Errorf("%s.name: is missing", at)
		case names[m.Name]:
			return fmt.Errorf("%s.name: %s is a duplicate", at, m.Name)
		case addresses[m.Address]:
			return fmt.Errorf("%s.address: %s is a duplicate", at, m.Address)
		case m.Role != string(config.RoleControlPlane) && m.Role != string(config.RoleWorker):
			return fmt.Errorf("%s.role: is %q, expected %s or %s", at, m.Role, config.RoleControlPlane, config.RoleWorker)
		}
		names[m.Name], addresses[m.Address] = true, true
		if m.Role == string(config.RoleControlPlane) {
			planes++
		}
	}
	if planes == 0 {
		return errors.New("machines: no machine has the role controlplane")
	}
	return nil
}

// Marshal returns the file as YAML.
func (f *File) Marshal() ([]byte, error) {
	text, err := yaml.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("cluster: cannot format: %w", err)
	}
	return text, nil
}

// Role returns the machines with a role, in the order of the file.
func (f *File) Role(role config.Role) []Machine {
	return slices.DeleteFunc(slices.Clone(f.Machines), func(m Machine) bool { return m.Role != string(role) })
}

// Redacted returns the paths of the redacted secrets, sorted.
func (f *File) Redacted() []string {
	var all []string
	f.eachText(func(path, text string) string {
		if text == config.Redacted {
			all = append(all, path)
		}
		return text
	})
	slices.Sort(all)
	return all
}

// eachText replaces each text in the documents by the result of replace. The paths have the form of
// the paths in a configuration: "Cluster.spec.endpoint".
func (f *File) eachText(replace func(path, text string) string) {
	for i, m := range f.Machines {
		f.Machines[i].Machine, _ = eachText("machine "+m.Name+": Machine.spec", m.Machine, replace).(map[string]any)
		f.Machines[i].Network, _ = eachText("machine "+m.Name+": Network.spec", m.Network, replace).(map[string]any)
		for j, v := range m.Volumes {
			f.Machines[i].Volumes[j].Spec, _ = eachText("machine "+m.Name+": Volume["+v.Name()+"].spec", v.Spec, replace).(map[string]any)
		}
	}
	f.Cluster.Spec, _ = eachText("Cluster.spec", f.Cluster.Spec, replace).(map[string]any)
	for i, a := range f.Addons {
		f.Addons[i].Spec, _ = eachText("Addon["+a.Name()+"].spec", a.Spec, replace).(map[string]any)
	}
}

// eachText returns a copy of a value, with each text replaced by the result of replace.
func eachText(path string, value any, replace func(path, text string) string) any {
	switch v := value.(type) {
	case string:
		return replace(path, v)
	case map[string]any:
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out[key] = eachText(path+"."+key, v[key], replace)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, item := range v {
			out[i] = eachText(fmt.Sprintf("%s[%d]", path, i), item, replace)
		}
		return out
	}
	return value
}

// clone returns a copy of a file.
func (f *File) clone() *File {
	text, err := json.Marshal(f)
	out := &File{}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		panic(fmt.Sprintf("cluster: cannot copy: %v", err)) // impossible: all values come from JSON
	}
	return out
}
