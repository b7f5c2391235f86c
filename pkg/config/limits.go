package config

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// A field with a number, an amount or a duration states its limits in a tag:
//
//	limits:"1 to 100"
//	limits:"whole seconds, 10s to 24h"      a multiple of the unit
//	limits:"1 to 253, the addresses of …"   with an explanation
//	limits:"10m to 168h, or 0s for none"    or zero
//
// The tag is also the expected value in the message, and the field's comment in the reference
// states the same limits.

// limitUnits are the units of whole numbers.
var limitUnits = map[string]int64{"": 1, "seconds": int64(time.Second), "MiB": 1 << 20}

// limits checks the values of all fields below a path that have the tag limits.
func (v checks) limits(path string, value reflect.Value) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			v.limits(path, value.Elem())
		}
	case reflect.Slice:
		for i := range value.Len() {
			v.limits(fmt.Sprintf("%s[%d]", path, i), value.Index(i))
		}
	case reflect.Struct:
		for i := 0; i < value.NumField() && !isText(value.Type()); i++ {
			field := value.Type().Field(i)
			at := path + "." + fieldName(field)
			if tag, limited := field.Tag.Lookup("limits"); limited && !withinLimits(tag, value.Field(i)) {
				v.on(at, wrong{reason: fmt.Sprintf("%v is out of range", value.Field(i).Interface()), expected: tag})
			}
			v.limits(at, value.Field(i))
		}
	}
}

// limitParts are the parts of the tag limits.
type limitParts struct{ unit, least, most, note string }

func parseLimits(tag string) (p limitParts) {
	rest := tag
	if whole, ok := strings.CutPrefix(tag, "whole "); ok {
		p.unit, rest, _ = strings.Cut(whole, ", ")
	}
	rest, p.note, _ = strings.Cut(rest, ", ")
	p.least, p.most, _ = strings.Cut(rest, " to ")
	return p
}

// withinLimits reports whether a value is within the limits of its tag. If the limits do not fit
// the type of the value, it returns false; a test checks the tags for this.
func withinLimits(tag string, value reflect.Value) bool {
	if !value.CanInt() {
		return false
	}
	p, n := parseLimits(tag), value.Int()
	unit, known := limitUnits[p.unit]
	least, err := limit(p.least, value.Type())
	most, err2 := limit(p.most, value.Type())
	zero := n == 0 && strings.HasPrefix(p.note, "or 0")
	return known && err == nil && err2 == nil && (zero || n >= least && n <= most && n%unit == 0)
}

// limit parses a lower or upper limit in the format of the field's type.
func limit(text string, t reflect.Type) (int64, error) {
	v := reflect.New(t)
	u, ok := v.Interface().(encoding.TextUnmarshaler)
	if !ok {
		return strconv.ParseInt(text, 10, 64)
	}
	err := u.UnmarshalText([]byte(text))
	return v.Elem().Int(), err
}
