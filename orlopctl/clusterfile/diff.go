package clusterfile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/orlop-os/orlop/pkg/config"
)

// Diff returns the differences of two clusters, a line for each field, sorted by document:
// "Cluster.spec.kubernetes.maxPods: 110 → 200". It compares the machines by name, and ignores their
// addresses. A missing field has its default. The files contain no keys and CAs, and the lines
// contain no secrets.
func Diff(a, b *File) ([]string, error) {
	x, err := a.complete()
	if err != nil {
		return nil, fmt.Errorf("the first cluster: %w", err)
	}
	y, err := b.complete()
	if err != nil {
		return nil, fmt.Errorf("the second cluster: %w", err)
	}
	d := &differences{}
	d.compare("Cluster", map[string]any{"metadata": x.Cluster.Metadata, "spec": x.Cluster.Spec}, map[string]any{"metadata": y.Cluster.Metadata, "spec": y.Cluster.Spec})
	compareNamed(x.Addons, y.Addons, Document.Name, func(name string, p, q *Document) {
		d.compare("Addon["+name+"]", specOrNone(p), specOrNone(q))
	})
	compareNamed(x.Machines, y.Machines, func(m Machine) string { return m.Name }, func(name string, p, q *Machine) {
		at := "machine " + name
		if p == nil || q == nil {
			d.lines = append(d.lines, fmt.Sprintf("%s: %s → %s", at, roleOrNone(p), roleOrNone(q)))
			return
		}
		d.compare(at+": role", p.Role, q.Role)
		d.compare(at+": Machine.spec", p.Machine, q.Machine)
		d.compare(at+": Network.spec", p.Network, q.Network)
		compareNamed(p.Volumes, q.Volumes, Document.Name, func(name string, v, w *Document) {
			d.compare(at+": Volume["+name+"]", specOrNone(v), specOrNone(w))
		})
	})
	return d.lines, nil
}

// none is the text for a missing field.
const none = "(none)"

func specOrNone(d *Document) any {
	if d == nil {
		return nil
	}
	return map[string]any{"spec": d.Spec}
}

func roleOrNone(m *Machine) string {
	if m == nil {
		return none
	}
	return m.Role
}

// compareNamed calls each for each name in two lists, with the items of that name. An item is nil
// if its list lacks the name.
func compareNamed[T any](a, b []T, name func(T) string, each func(name string, p, q *T)) {
	index := func(list []T) map[string]*T {
		all := map[string]*T{}
		for i := range list {
			all[name(list[i])] = &list[i]
		}
		return all
	}
	p, q := index(a), index(b)
	for _, n := range keysOf(p, q) {
		each(n, p[n], q[n])
	}
}

// keysOf returns the keys of both maps, sorted, each of them once.
func keysOf[T any](a, b map[string]T) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// complete returns a copy of the file. In the copy, each missing field has its default, and ${NAME}
// replaces the addresses of the machines.
func (f *File) complete() (*File, error) {
	out := f.clone()
	out.insertNames()
	base, err := split(config.Marshal(config.New("machine", config.RoleControlPlane).WithCluster("cluster", config.Endpoint{}, config.PKI{}, config.EncryptionKey{})))
	if err != nil {
		return nil, err
	}
	out.Cluster.Spec = over(specOf(base, "Cluster"), out.Cluster.Spec)
	for _, field := range generated {
		delete(out.Cluster.Spec, field)
	}
	for i, m := range out.Machines {
		own, err := split(config.Marshal(config.New(m.Name, config.Role(m.Role))))
		if err != nil {
			return nil, err
		}
		out.Machines[i].Machine = over(specOf(own, "Machine"), m.Machine)
		out.Machines[i].Network = over(specOf(own, "Network"), m.Network)
		delete(out.Machines[i].Machine, "role")
	}
	return out.clone(), nil // clone gives all numbers the type of JSON, so equal numbers are equal
}

// The function over returns the fields of spec, with the value in defaults for each field that spec
// lacks. It does the same within blocks of fields.
func over(defaults, spec map[string]any) map[string]any {
	out := maps.Clone(defaults)
	if out == nil {
		out = map[string]any{}
	}
	for key, value := range spec {
		fields, block := value.(map[string]any)
		usual, isBlock := out[key].(map[string]any)
		if block && isBlock {
			value = over(usual, fields)
		}
		out[key] = value
	}
	return out
}

// differences collects the lines of a comparison.
type differences struct{ lines []string }

// compare adds a line for each difference of two values. path is the path of the values. nil is a
// missing value.
func (d *differences) compare(path string, a, b any) {
	if reflect.DeepEqual(a, b) {
		return
	}
	x, isBlock := a.(map[string]any)
	y, block := b.(map[string]any)
	if (isBlock || a == nil) && (block || b == nil) && len(x)+len(y) > 0 {
		for _, key := range keysOf(x, y) {
			d.compare(path+"."+key, x[key], y[key])
		}
		return
	}
	p, isList := a.([]any)
	q, list := b.([]any)
	if isList && list {
		for i := range max(len(p), len(q)) {
			d.compare(path+"["+strconv.Itoa(i)+"]", item(p, i), item(q, i))
		}
		return
	}
	d.lines = append(d.lines, path+": "+shown(a)+" → "+shown(b))
}

func item(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

// shown returns a value on a single line, cut after 120 bytes.
func shown(v any) string {
	const most = 120
	text, isText := v.(string)
	switch {
	case v == nil:
		return none
	case !isText:
		encoded, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		text = string(encoded)
	case len(text) > most || slices.Contains([]byte(text), '\n'):
		text = strconv.Quote(text)
	}
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
