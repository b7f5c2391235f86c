package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// none is the text for a missing field.
const none = "(none)"

// Equal reports whether two configurations have the same values. Source positions do not matter.
func Equal(a, b *Config) bool { return len(Changes(a, b)) == 0 }

// Changes returns the differences, one line for each field, in the order of the documents:
// "Network.spec.links[0].mtu: 1500 → 9000". List items are compared by index, volumes and add-ons
// by name. The lines contain no values of secrets. A nil configuration means a machine without a
// configuration.
func Changes(before, after *Config) []string {
	d := differ{}
	a, b := map[string]reflect.Value{}, map[string]reflect.Value{}
	var all []document
	for _, doc := range before.documents() {
		a[doc.path] = doc.value
		all = append(all, doc)
	}
	for _, doc := range after.documents() {
		b[doc.path] = doc.value
		if _, both := a[doc.path]; !both {
			all = append(all, doc)
		}
	}
	order := new(Config).kindNames()
	slices.SortStableFunc(all, func(x, y document) int { return slices.Index(order, x.kind) - slices.Index(order, y.kind) })
	for _, doc := range all {
		d.compare(doc.path, a[doc.path], b[doc.path])
	}
	return d.lines
}

// isPointer reports whether a value is a pointer. Fields of pointer type are optional.
func isPointer(v reflect.Value) bool { return v.IsValid() && v.Kind() == reflect.Pointer }

// emptyOrNone returns the text for a block without set fields: "{}" if the block exists, otherwise
// none.
func emptyOrNone(v reflect.Value) string {
	if v.IsValid() {
		return "{}"
	}
	return none
}

// differ collects differences.
type differ struct{ lines []string }

// compare adds the differences between two values of the same type. An invalid reflect.Value means
// a missing field.
func (d *differ) compare(path string, a, b reflect.Value) {
	optional := isPointer(a) || isPointer(b)
	a, b = deref(a), deref(b)
	some := a
	if !a.IsValid() {
		some = b
	}
	if !some.IsValid() {
		return
	}
	if _, ok := leaf(some); ok || some.Kind() == reflect.Bool || some.CanInt() || some.CanUint() {
		d.leaf(path, a, b)
		return
	}
	switch some.Kind() {
	case reflect.Struct:
		lines := len(d.lines)
		for i := range some.NumField() {
			d.compare(path+"."+fieldName(some.Type().Field(i)), part(a, reflect.Value.Field, i), part(b, reflect.Value.Field, i))
		}
		// An empty block, for example "firewall: {}", differs from a missing block.
		if optional && a.IsValid() != b.IsValid() && len(d.lines) == lines {
			d.lines = append(d.lines, path+": "+emptyOrNone(a)+" → "+emptyOrNone(b))
		}
	case reflect.Slice:
		for i := range max(length(a), length(b)) {
			d.compare(fmt.Sprintf("%s[%d]", path, i), part(a, item, i), part(b, item, i))
		}
	case reflect.Map:
		keys := map[string]bool{}
		for _, v := range []reflect.Value{a, b} {
			if v.IsValid() {
				for _, key := range sortedKeys(v) {
					keys[key] = true
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			k := reflect.ValueOf(key)
			was, is := entry(part(a, reflect.Value.MapIndex, k)), entry(part(b, reflect.Value.MapIndex, k))
			if was != is {
				d.lines = append(d.lines, path+"["+strconv.Quote(key)+"]: "+was+" → "+is)
			}
		}
	}
}

// entry returns the text for a value in a map. An empty value gets its own text, because it differs
// from a missing key.
func entry(v reflect.Value) string {
	if v.IsValid() && v.Kind() == reflect.String && v.Len() == 0 {
		return `""`
	}
	return displayText(v)
}

// leaf compares two values that are printed as a single text.
func (d *differ) leaf(path string, a, b reflect.Value) {
	was, is := displayText(a), displayText(b)
	if _, secret := validOne(a, b).(interface{ Reveal() string }); secret {
		if reveal(a) != reveal(b) {
			d.lines = append(d.lines, path+": "+secretChange(was, is))
		}
		return
	}
	if was == is && completeText(a) == completeText(b) {
		return
	}
	d.lines = append(d.lines, path+": "+was+" → "+is)
}

func secretChange(was, is string) string {
	switch {
	case was == none:
		return "(added)"
	case is == none:
		return "(removed)"
	}
	return "(changed)"
}

// displayText returns a value for display: on one line, without secrets, certificates by name.
func displayText(v reflect.Value) string {
	if !v.IsValid() {
		return none
	}
	text, ok := leaf(v)
	if cert, isCert := v.Interface().(Certificate); isCert {
		text = cert.String()
	} else if !ok && (v.Kind() == reflect.Bool || !v.IsZero()) {
		text = fmt.Sprint(v.Interface())
	}
	switch {
	case text == "":
		return none
	case strings.ContainsAny(text, "\n\t"):
		return quote(text)
	}
	return text
}

// completeText returns the complete text of a value. It is for comparisons, because displayText
// shortens some values.
func completeText(v reflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	text, _ := leaf(v)
	return text
}

func reveal(v reflect.Value) string {
	if !v.IsValid() {
		return ""
	}
	return v.Interface().(interface{ Reveal() string }).Reveal()
}

// validOne returns the value of a, or of b if a is invalid.
func validOne(a, b reflect.Value) any {
	if a.IsValid() {
		return a.Interface()
	}
	return b.Interface()
}

// deref dereferences a pointer; nil yields an invalid value.
func deref(v reflect.Value) reflect.Value {
	if v.IsValid() && v.Kind() == reflect.Pointer {
		return v.Elem()
	}
	return v
}

// part returns get(v, key); an invalid value if v is invalid.
func part[K any](v reflect.Value, get func(reflect.Value, K) reflect.Value, key K) reflect.Value {
	if !v.IsValid() {
		return v
	}
	return get(v, key)
}

// item returns an item of a list; an invalid value beyond its end.
func item(v reflect.Value, i int) reflect.Value {
	if i >= v.Len() {
		return reflect.Value{}
	}
	return v.Index(i)
}

func length(v reflect.Value) int {
	if !v.IsValid() {
		return 0
	}
	return v.Len()
}
