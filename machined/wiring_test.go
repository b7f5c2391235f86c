package main

import (
	"reflect"
	"strings"
	"testing"
)

// TestWiring checks that newMachine gives each package all its dependencies. A package that is
// created before one of its dependencies would get nil.
func TestWiring(t *testing.T) {
	for _, field := range unset(reflect.ValueOf(newMachine()).Elem(), "machine") {
		t.Errorf("%s is not set", field)
	}
}

// unset returns the nil fields of the struct v. It also searches the fields that are structs or
// types of this package, and the dependencies of other packages: their fields with the name "deps".
// path is the name of v.
func unset(v reflect.Value, path string) (missing []string) {
	for i := range v.NumField() {
		name, field := path+"."+v.Type().Field(i).Name, v.Field(i)
		switch field.Kind() {
		case reflect.Func, reflect.Interface, reflect.Chan:
			if field.IsNil() {
				missing = append(missing, name)
			}
		case reflect.Pointer:
			switch {
			case field.IsNil():
				missing = append(missing, name)
			case !strings.Contains(path, ".deps") && field.Elem().Type().PkgPath() == v.Type().PkgPath() && v.Type().PkgPath() == reflect.TypeFor[machine]().PkgPath():
				missing = append(missing, unset(field.Elem(), name)...)
			case !strings.Contains(path, ".deps") || strings.HasSuffix(name, ".deps"):
				missing = append(missing, dependencies(field.Elem(), name)...)
			}
		case reflect.Struct:
			missing = append(missing, unset(field, name)...)
		}
	}
	return missing
}

// dependencies returns the nil fields of the dependencies of v, a value of another package.
func dependencies(v reflect.Value, path string) (missing []string) {
	if v.Kind() != reflect.Struct {
		return nil
	}
	if strings.HasSuffix(path, ".deps") {
		return unset(v, path)
	}
	for i := range v.NumField() {
		name, field := path+"."+v.Type().Field(i).Name, v.Field(i)
		if v.Type().Field(i).Name != "deps" {
			continue
		}
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		}
		missing = append(missing, unset(field, name)...)
	}
	return missing
}
