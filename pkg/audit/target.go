package audit

import (
	"fmt"
	"regexp"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

var (
	choices = regexp.MustCompile(`\[[^][]*\]`)
	fields  = regexp.MustCompile(`\{\w+\}`)
)

// Target returns the target of a call: the template of its audit rule (api.AuditRule), filled with
// the fields of its request. An unknown field inserts no text; a test ensures that each template of
// the API names only fields of its request.
func Target(template string, request proto.Message) string {
	m := request.ProtoReflect()
	chosen := choices.ReplaceAllStringFunc(template, func(choice string) string {
		for option := range strings.SplitSeq(choice[1:len(choice)-1], "|") {
			name, text, conditional := strings.Cut(option, "?")
			if !conditional {
				return option
			}
			if isSet(m, name) {
				return text
			}
		}
		return ""
	})
	// The values are inserted last, so braces and brackets in a value have no effect.
	return fields.ReplaceAllStringFunc(chosen, func(field string) string { return text(m, field[1:len(field)-1]) })
}

// isSet reports whether a field of a request has a value. For a duration, it reports whether the
// duration is positive.
func isSet(m protoreflect.Message, name string) bool {
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if f == nil || !m.Has(f) {
		return false
	}
	d, isDuration := value(m, f).(*durationpb.Duration)
	return !isDuration || d.AsDuration() > 0
}

// text returns the value of a field as text.
func text(m protoreflect.Message, name string) string {
	f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if f == nil {
		return ""
	}
	switch v := value(m, f).(type) {
	case *durationpb.Duration:
		return v.AsDuration().String()
	case protoreflect.EnumNumber:
		return enumText(f.Enum(), v)
	default:
		return fmt.Sprint(v)
	}
}

// value returns the value of a field as a Go value; the value of a message field has its generated
// Go type.
func value(m protoreflect.Message, f protoreflect.FieldDescriptor) any {
	v := m.Get(f).Interface()
	if inner, ok := v.(protoreflect.Message); ok {
		return inner.Interface()
	}
	return v
}

// enumText returns the name of an enumeration value without the prefix of its type: "state", or
// "unspecified".
func enumText(enum protoreflect.EnumDescriptor, number protoreflect.EnumNumber) string {
	v := enum.Values().ByNumber(number)
	if v == nil {
		return fmt.Sprint(number)
	}
	prefix := strings.TrimSuffix(string(enum.Values().ByNumber(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}
