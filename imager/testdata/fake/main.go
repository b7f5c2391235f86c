// Command fake takes the place of every program in the tests' image: it does nothing.
package main

func main() {}
