// Command fake does nothing. It replaces every program of the image in tests.
package main

func main() {}
